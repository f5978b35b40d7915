"""What people do with images that users have built: offer one to a group, or ask that everybody is offered it.

An offer becomes an image of the store by ``carme-hub image publish``, which is not this service's: it cannot write the
store. Administrators allow, or refuse, what everybody would get.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carme_hub.domain.images.builds import Build, BuildState, Wanted, limits_for
from carme_hub.domain.images.offers import Offer, To
from carme_hub.domain.images.scopes import MANAGE
from carme_hub.services.images.application.acts import UnknownImage
from carme_hub.services.rest import NotOwner, Unprocessable
from carme_hub.store.threads import in_store_thread


async def builds_for(handler: Any) -> list[Build]:
    """Return the visitor's own images; with the right to manage images, also those that others want offered."""
    every = await in_store_thread(handler.service.builds.builds, handler.service.clock())
    user, manages = handler.visitor.name if handler.visitor.is_user else "", handler.has_scope(MANAGE)
    return [each for each in every if each.user == user or (manages and (each.wanted or each.published))]


async def build_for(handler: Any, id: str) -> Build:
    """Return one of them.

    Raises:
        UnknownImage: there is none of this id for the visitor.
    """
    found = next((each for each in await builds_for(handler) if each.id == id), None)
    if found is None:
        raise UnknownImage("There is no such image of yours.")
    return found


async def want(handler: Any, id: str, to: To, who: str) -> Build:
    """Have an image offered; in place of what was wanted before.

    Raises:
        NotOwner: it is somebody else's, or the visitor is not in the group. Unprocessable: it is not ready, or is an
            image of the store already.
    """
    build, visitor = await build_for(handler, id), handler.visitor
    if build.user != visitor.name:
        raise NotOwner("Only its user can offer this image.")
    if to is To.USER:
        raise Unprocessable("An image of yours is offered to a group, or to everybody.")
    if to is To.GROUP and who not in visitor.groups:
        raise NotOwner(f"You are not in group {who[:64]}, so you cannot offer it an image.")
    if build.state is not BuildState.READY:
        raise Unprocessable(f"{build.name} is not ready.")
    if build.published:
        raise Unprocessable(f"{build.published} is an image of the store already: offer that one.")
    if not build.is_pinned:
        raise Unprocessable(
            f"{build.base}, below it, has no digest, so it cannot be offered. Build it again on an image that has one."
        )
    if not handler.has_scope(MANAGE):
        await _check_room(handler, build)
    allowed = visitor.actor if to is To.EVERYBODY and handler.has_scope(MANAGE) else ""
    wanted = Wanted(Offer(to, who, visitor.actor, handler.service.clock()), allowed)
    return await _store(handler, build, wanted, f"wants it offered to {to.value} {who}")


async def _check_room(handler: Any, build: Build) -> None:
    """Raise ``Unprocessable`` where a user has as many images in the store, and on the way there, as they may build."""
    service, visitor = handler.service, handler.visitor
    most = limits_for(visitor.groups, service.settings.build_limits).builds
    known = await in_store_thread(service.images.images)
    waiting = [each for each in await builds_for(handler) if each.user == visitor.name and each.wanted is not None]
    count = sum(not each.gone and each.belongs_to(visitor.name) for each in known)
    if count + sum(each.id != build.id and not each.published for each in waiting) >= most:
        raise Unprocessable(
            f"You have {most} images in the store, or on the way there, and may have no more. Ask an administrator to "
            "remove one."
        )


async def withdraw(handler: Any, id: str) -> Build:
    """Want nothing any more; what is published stays.

    Raises:
        NotOwner: it is somebody else's.
    """
    build = await build_for(handler, id)
    if build.user != handler.visitor.name and not handler.has_scope(MANAGE):
        raise NotOwner("Only its user and administrators can do that.")
    return await _store(handler, build, None, "wants it offered to nobody any more")


async def decide(handler: Any, id: str, *, allow: bool, why: str) -> Build:
    """Allow that everybody is offered an image, or refuse it with a reason for its user.

    Raises:
        Unprocessable: nobody wants that, or the reason is missing.
    """
    build = await build_for(handler, id)
    wanted, actor = build.wanted, handler.visitor.actor
    if wanted is None or wanted.offer.to is not To.EVERYBODY:
        raise Unprocessable(f"{build.name} is not to be offered to everybody.")
    why = " ".join(why.split())[:500]
    if not allow and not why:
        raise Unprocessable("Say why not: its user reads it.")
    new = Wanted(wanted.offer, actor if allow else "", "" if allow else f"{actor} refuses it: {why}")
    return await _store(handler, build, new, "allows it for everybody" if allow else f"refuses it: {why}")


async def _store(handler: Any, build: Build, wanted: Wanted | None, what: str) -> Build:
    service = handler.service
    await in_store_thread(lambda: service.builds.change(build.id, BuildState.READY, wanted=wanted))
    service.log.info("%s: image %s of %s: %s", handler.visitor.actor, build.name, build.user, what)
    return replace(build, wanted=wanted)


def words_of(wanted: Wanted) -> str:
    """Return what becomes of an offer that is wanted."""
    to = "everybody" if wanted.offer.to is To.EVERYBODY else f"group {wanted.offer.name}"
    if wanted.problem:
        return f"Not offered to {to}: {wanted.problem}"
    if wanted.is_due:
        return f"To be offered to {to} as soon as it is unpacked and scanned."
    return f"To be offered to {to}; an administrator has to allow it."
