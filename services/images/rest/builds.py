"""REST operations on images that users have built: what is to be offered to whom, and what administrators decide."""

from __future__ import annotations

from carme_hub.domain.images.builds import Build, removed_at
from carme_hub.services.images.application import acts, own
from carme_hub.services.images.rest import models
from carme_hub.services.rest import Call


def build_out(build: Build) -> models.BuildOut:
    """Return an image of a user for programs."""
    wanted = build.wanted
    offer = wanted.offer if wanted is not None else None
    return models.BuildOut(
        id=build.id,
        name=build.name,
        user=build.user,
        state=build.state.value,
        problem=build.problem,
        base=build.base,
        base_digest=build.base_digest,
        packages=build.text,
        created=int(build.created),
        used=int(build.used),
        until=int(removed_at(build)),
        published=build.published,
        wanted=models.WantedOfferOut(
            to=offer.to.value,
            name=offer.name,
            by=offer.by,
            at=int(offer.at),
            allowed=wanted.allowed,
            problem=wanted.problem,
            digest=wanted.digest,
            found=wanted.found,
            needs_leave=wanted.needs_leave,
            beyond=wanted.beyond,
            void=wanted.void,
            waiting=wanted.waiting,
            again=int(wanted.again),
        )
        if wanted is not None and offer is not None
        else None,
    )


async def builds(call: Call) -> models.BuildsOut:
    """Return the visitor's own images, and what others want offered where the visitor decides."""
    return models.BuildsOut(builds=[build_out(each) for each in await own.builds_for(call.handler)])


async def want(call: Call) -> models.BuildOut:
    """Have an image offered."""
    body: models.OfferIn = call.body
    to, name = acts.checked_to(body.to, body.name)
    return build_out(await own.want(call.handler, call.path_parameters["id"], to, name, with_base=body.with_base))


async def withdraw(call: Call) -> models.BuildOut:
    """Have it offered to nobody any more."""
    return build_out(await own.withdraw(call.handler, call.path_parameters["id"]))


async def decide(call: Call) -> models.BuildOut:
    """Allow or refuse an offer that needs an administrator."""
    body: models.DecisionIn = call.body
    said = {"allow": body.allow, "with_base": body.with_base}
    id = call.path_parameters["id"]
    return build_out(await own.decide(call.handler, id, why=body.reason, digest=body.digest, **said))
