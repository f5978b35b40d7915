"""REST operations that read: images, and the board of nodes."""

from __future__ import annotations

from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.domain.images.scopes import MANAGE, READ_ALL
from carme_hub.services.images.application import acts, board, view
from carme_hub.services.images.application.fit import profiles_for, try_in
from carme_hub.services.images.rest import models
from carme_hub.services.rest import Call
from carme_hub.store.threads import in_store_thread


async def images(call: Call) -> models.ImagesOut:
    """Return the images that the visitor sees."""
    query: models.ImagesQuery = call.query
    site = await call.service.site()
    visitor, everything = call.visitor, call.handler.has_scope(READ_ALL, MANAGE)
    seen = view.visible(
        list(site.view.images.values()), visitor.name, visitor.groups, everything=everything, now=site.now
    )
    found, count, page = view.page_of(seen, query.q, query.page)
    shown = [image_out(each, site, call, everything=everything) for each in found]
    return models.ImagesOut(page=page, count=count, images=shown)


async def image(call: Call) -> models.ImageOut:
    """Return one image."""
    return await shown_image(call, await acts.image_for(call.handler, call.path_parameters["name"]))


async def shown_image(call: Call, image: CatalogueImage) -> models.ImageOut:
    """Return an image as the visitor sees it."""
    everything = call.handler.has_scope(READ_ALL, MANAGE)
    return image_out(image, await call.service.site(), call, everything=everything)


def image_out(image: CatalogueImage, site: view.Site, call: Call, *, everything: bool) -> models.ImageOut:
    """Return an image for programs; ``everything``: with what concerns other people only."""
    visitor, users = call.visitor, everything
    fits, found = profiles_for(image, site.profiles, site.drivers), site.fetching(image)
    contents, retirement = image.contents, image.retirement
    names = ("python", "cuda", "torch", "jupyterlab", "jupyterhub")
    return models.ImageOut(
        name=image.name,
        description=image.description,
        digest=image.digest,
        tag=image.tag,
        resolved=image.resolved,
        source=image.source,
        size_bytes=image.size,
        files=image.files,
        added_by=image.by,
        added=image.when,
        format=image.form,
        base=image.base,
        labels=dict(image.labels),
        licences=dict(image.licences),
        provides=list(image.provides),
        inside=models.InsideOut(**{name: getattr(contents, name) for name in names}),
        offers=[
            models.OfferOut(to=each.to.value, name=each.name, by=each.by, at=int(each.at))
            for each in view.offers_shown(image, visitor.name, visitor.groups, everything=everything)
        ],
        retirement=models.RetirementOut(
            date=int(retirement.date),
            reason=retirement.reason,
            by=retirement.by,
            at=int(retirement.at),
            told=int(retirement.told),
        )
        if retirement is not None
        else None,
        sessions=len(site.users.get(image.name, ())),
        users=sorted(set(site.users.get(image.name, ()))) if users else [],
        start_seconds=site.view.starts.get(image.name),
        fetch=models.FetchOut(
            nodes=found.nodes,
            there=found.there,
            silent=found.silent,
            seconds=round(found.seconds, 1),
            sentence=found.sentence(),
        )
        if found is not None
        else None,
        fits=[models.FitOut(profile=each.profile.slug, fits=each.fit.fits, why=each.fit.why) for each in fits],
        gone=bool(image.gone),
        try_it=view.try_link(call.handler.hub_auth.hub_prefix, image.name, try_in(fits)),
    )


async def nodes(call: Call) -> models.NodesOut:
    """Return the board of nodes."""
    names, held, about, wanted = await board.read(call.service)
    catalogue = {each.digest: each.name for each in await in_store_thread(call.service.images.images) if each.digest}
    return models.NodesOut(
        nodes=[
            models.NodeOut(
                node=node,
                reported=int(about[node].at) if node in about else 0,
                driver=about[node].driver if node in about else "",
                free_bytes=about[node].free if node in about else 0,
                images=[
                    models.CopyOut(
                        digest=each.digest,
                        image=catalogue.get(each.digest, ""),
                        at=int(each.at),
                        seconds=each.seconds,
                        size_bytes=each.size,
                        problem=each.problem,
                    )
                    for each in held.get(node, ())
                ],
                wanted=wanted.get(node, []),
            )
            for node in names
        ]
    )
