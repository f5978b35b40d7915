"""What people do with images that users have built: offer one to a group, or ask that everybody is offered it.

An offer becomes an image of the store by ``carme-hub image publish``, which is not this service's: it cannot write the
store. Administrators allow, or refuse, what everybody would get, and what passes on a base to people who are not
offered that; they decide on the digest of what was taken, hardened and scanned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carme_hub.domain.images.builds import Build, BuildState, limits_for
from carme_hub.domain.images.offers import Offer, To
from carme_hub.domain.images.scopes import MANAGE
from carme_hub.domain.images.wanted import Wanted
from carme_hub.images.publishing import beyond
from carme_hub.services.images.application.acts import UnknownImage, check_base
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


async def want(handler: Any, id: str, to: To, who: str, *, with_base: bool = False) -> Build:
    """Have an image offered; in place of what was wanted before.

    Args:
        with_base: an administrator, whose image it is, knows that it passes on its base to people who are not offered
            that.

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
    manages = handler.has_scope(MANAGE)
    if not manages:
        await _check_room(handler, build)
    offer = Offer(to, who, visitor.actor, handler.service.clock())
    more = await _beyond(handler, build, offer)
    if manages:
        check_base(more, manages=True, with_base=with_base)
    wanted = Wanted(offer, visitor.actor if manages else "", beyond=more, with_base=manages and with_base)
    return await _store(handler, build, wanted, f"wants it offered to {to.value} {who}")


async def _beyond(handler: Any, build: Build, offer: Offer) -> str:
    service = handler.service
    return beyond(build, offer, await in_store_thread(service.images.images), service.clock())


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


async def decide(
    handler: Any, id: str, *, allow: bool, why: str = "", digest: str = "", with_base: bool = False
) -> Build:
    """Allow what a user wants offered, or refuse it with a reason for its user.

    Args:
        digest: that is allowed: of what was taken and scanned. with_base: its base, too, for people who are not offered
            that.

    Raises:
        Unprocessable: nobody wants that, it is not scanned yet or is another one now, or the reason is missing.
        PassesOn: it passes on its base, which was not said.
    """
    build = await build_for(handler, id)
    wanted, actor = build.wanted, handler.visitor.actor
    if wanted is None or not wanted.needs_leave:
        raise Unprocessable(f"{build.name} needs nobody's leave.")
    why = " ".join(why.split())[:500]
    if not allow:
        if not why:
            raise Unprocessable("Say why not: its user reads it.")
        new = replace(wanted, allowed="", with_base=False, problem=f"{actor} refuses it: {why}")
        return await _store(handler, build, new, f"refuses it: {why}")
    if not wanted.digest:
        raise Unprocessable(wanted.problem or f"{build.name} is not scanned yet. Decide when its digest is here.")
    if digest != wanted.digest:
        raise Unprocessable(f"{build.name} is {wanted.digest} now. Look at that one, and name it if you allow it.")
    more = await _beyond(handler, build, wanted.offer)
    check_base(more, manages=True, with_base=with_base)
    new = replace(wanted, beyond=more).decided(actor, with_base=bool(more))
    return await _store(handler, build, new, f"allows {digest}{' with its base' if more else ''}")


async def _store(handler: Any, build: Build, wanted: Wanted | None, what: str) -> Build:
    """Store what is wanted in place of what it was when it was looked at."""
    service = handler.service
    if not await in_store_thread(service.builds.change_wanted, build.id, build.wanted, wanted):
        raise Unprocessable(f"Something else has become of {build.name} meanwhile. Look at it again.")
    service.log.info("%s: image %s of %s: %s", handler.visitor.actor, build.name, build.user, what)
    return replace(build, wanted=wanted)
