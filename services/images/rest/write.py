"""REST operations that change something: offers, retirement, and what nodes say. Each may be sent again."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.images.start_times import Held
from carme_hub.services.images.application import acts
from carme_hub.services.images.rest import models
from carme_hub.services.images.rest.read import shown_image
from carme_hub.services.rest import Call
from carme_hub.store.images.nodes import ImageNode
from carme_hub.store.threads import in_store_thread


async def retire(call: Call) -> models.ImageOut:
    """Let an image not be offered from a date on."""
    body: models.RetireIn = call.body
    name = call.path_parameters["name"]
    return await shown_image(call, await acts.retire(call.handler, name, float(body.date), body.reason))


async def keep(call: Call) -> models.ImageOut:
    """Offer a retired image again."""
    return await shown_image(call, await acts.keep(call.handler, call.path_parameters["name"]))


async def offer(call: Call) -> models.ImageOut:
    """Offer an image."""
    body: models.OfferIn = call.body
    to, name = acts.checked_to(body.to, body.name)
    image = await acts.offer(call.handler, call.path_parameters["name"], to, name, with_base=body.with_base)
    return await shown_image(call, image)


async def take_back(call: Call) -> models.ImageOut:
    """Take an offer back."""
    query: models.OfferQuery = call.query
    to, name = acts.checked_to(query.to, query.name)
    return await shown_image(call, await acts.take_back(call.handler, call.path_parameters["name"], to, name))


async def wanted(call: Call) -> models.WantedOut:
    """Return what a node is to fetch."""
    service = call.service
    bookings = await service.bookings()
    images = {each.name: each for each in await in_store_thread(service.images.images)} if bookings else {}
    found = service.wanted(call.path_parameters["node"], bookings, images)
    references = [each.digest + (".sqfs" if each.form == "sqfs" else "") for each in found]
    return models.WantedOut(images=list(dict.fromkeys(references)))


async def report(call: Call) -> dict[str, Any]:
    """Store what a node has."""
    body: models.NodeIn = call.body
    node, now = call.path_parameters["node"], call.service.clock()
    by_digest = {each.digest: each for each in body.images}
    held = [
        Held(node, each.digest, each.at, each.seconds, each.size, " ".join(each.problem.split()))
        for each in by_digest.values()
    ]
    about = ImageNode(node, now, body.driver, body.free)
    await in_store_thread(call.service.copies.report, about, held)
    for each in held:
        if each.problem:
            call.service.log.warning("Node %s could not fetch %s: %s", node, each.digest, each.problem)
    return {"node": node, "images": len(held)}
