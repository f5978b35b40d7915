"""What people do with images, for pages and REST: offers and retirement, each with who may do it."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.images.audience import below, passed_on
from carme_hub.domain.images.offers import CatalogueImage, Offer, Retirement, To
from carme_hub.domain.images.scopes import MANAGE, READ_ALL
from carme_hub.errors import Refused, StoreError
from carme_hub.services.images.application import view
from carme_hub.services.rest import NotOwner, Unprocessable
from carme_hub.store.threads import in_store_thread

#: Characters of a reason and of a name; seconds ahead that a date may be.
MOST_REASON, MOST_NAME, MOST_AHEAD = 500, 255, 2 * 366 * 86_400.0


class UnknownImage(Refused):
    """There is no such image, or the visitor is not offered it."""

    reason = "unknown"


class PassesOn(Unprocessable):
    """The offer passes on an image below to people who are not offered that; who manages images may say so."""

    reason = "base"


def check_base(problem: str, *, manages: bool, with_base: bool) -> None:
    """Raise where an offer passes on an image below, unless an administrator knows that.

    Args:
        problem: of ``passed_on``; "" = it does not.
    """
    if not problem or (manages and with_base):
        return
    if not manages:
        raise NotOwner(f"{problem} So only an administrator can offer this one to them. Ask one of them.")
    raise PassesOn(f"{problem} With this image they get all of that. If that is right, offer it with its base.")


async def image_for(handler: Any, name: str) -> CatalogueImage:
    """Return an image that the visitor may see.

    Raises:
        UnknownImage: there is none of this name for them.
    """
    service, visitor = handler.service, handler.visitor
    found = await in_store_thread(service.images.image, name)
    everything = handler.has_scope(READ_ALL, MANAGE)
    shown = view.visible(
        [found] if found is not None else [], visitor.name, visitor.groups, everything=everything, now=service.clock()
    )
    own = found is not None and visitor.is_user and found.belongs_to(visitor.name)
    if found is None or not (shown or own):
        raise UnknownImage(f"There is no image {name[:64]} for you. The catalogue has those that you are offered.")
    return found


def _check_may_offer(handler: Any, image: CatalogueImage, to: To, name: str) -> None:
    """Raise ``NotOwner`` unless the visitor may offer the image to these people, or take it back from them."""
    visitor = handler.visitor
    if handler.has_scope(MANAGE):
        return
    if not visitor.is_user or not image.belongs_to(visitor.name):
        raise NotOwner("Only its owner and administrators can offer this image.")
    if to is To.EVERYBODY:
        raise NotOwner("Only administrators can offer an image to everybody. Ask one of them.")
    if to is To.GROUP and name not in visitor.groups:
        raise NotOwner(f"You are not in group {name[:64]}, so you cannot offer it an image.")


def checked_to(to: str, name: str) -> tuple[To, str]:
    """Return to whom an offer is.

    Raises:
        Unprocessable: that cannot be.
    """
    try:
        kind = To(to)
    except ValueError as error:
        raise Unprocessable(f"To is one of {', '.join(each.value for each in To)}.") from error
    name = name.strip()
    if kind is To.EVERYBODY:
        return kind, ""
    if not name or len(name) > MOST_NAME or not name.isprintable():
        raise Unprocessable(f"Name the {kind.value} to whom the image is offered.")
    return kind, name


async def offer(handler: Any, name: str, to: To, who: str, *, with_base: bool = False) -> CatalogueImage:
    """Offer an image; the same offer again changes nothing.

    Args:
        with_base: an administrator knows that it passes on an image below to people who are not offered that.

    Raises:
        UnknownImage, NotOwner, PassesOn: as they say. Unprocessable: the administrator lists it, so everybody has it.
    """
    image = await image_for(handler, name)
    _check_may_offer(handler, image, to, who)
    if image.listed:
        raise Unprocessable(f"Everybody is offered {name}: it is in SlurmContainerSpawner.images.")
    service = handler.service
    if (base := below(image)) is not None:
        known = await in_store_thread(service.images.images)
        problem = passed_on(to, who, base, known, service.clock())
        check_base(problem, manages=handler.has_scope(MANAGE), with_base=with_base)
    await in_store_thread(service.images.offer, name, Offer(to, who, handler.visitor.actor, service.clock()))
    service.log.info("%s offers image %s to %s %s", handler.visitor.actor, name, to.value, who)
    return await image_for(handler, name)


async def take_back(handler: Any, name: str, to: To, who: str) -> CatalogueImage:
    """Take an offer back; sessions that run keep the image.

    Raises:
        UnknownImage: there is no such image or offer. NotOwner: as it says.
    """
    image = await image_for(handler, name)
    _check_may_offer(handler, image, to, who)
    if not await in_store_thread(handler.service.images.take_back, name, to, who):
        raise UnknownImage(f"Image {name} is not offered to {to.value} {who}.".replace(" .", "."))
    handler.service.log.info("%s offers image %s to %s %s no more", handler.visitor.actor, name, to.value, who)
    found = await in_store_thread(handler.service.images.image, name)
    return found or image


async def retire(handler: Any, name: str, date: float, reason: str) -> CatalogueImage:
    """Let an image not be offered from a date on, and tell those whose sessions have it.

    Raises:
        UnknownImage: there is none. Unprocessable: the date or the reason cannot be used.
    """
    service, now = handler.service, handler.service.clock()
    await image_for(handler, name)
    reason = " ".join(reason.split())
    if not reason or len(reason) > MOST_REASON:
        raise Unprocessable(f"Say why, in 1 to {MOST_REASON} characters: users read it.")
    if not now - 86_400 <= date <= now + MOST_AHEAD:
        raise Unprocessable("The date is from today on, and at most two years ahead.")
    await in_store_thread(service.images.retire, name, Retirement(date, reason, handler.visitor.actor, now))
    service.log.info("%s retires image %s from %s on: %s", handler.visitor.actor, name, int(date), reason)
    try:
        await service.keeper.tell_of_retirements()
    except StoreError as error:
        service.log.warning("Users of image %s are told later of its retirement: %s", name, error)
    return await image_for(handler, name)


async def keep(handler: Any, name: str) -> CatalogueImage:
    """Offer a retired image again, without a date.

    Raises:
        UnknownImage: there is none, or it has no date.
    """
    await image_for(handler, name)
    if not await in_store_thread(handler.service.images.keep, name):
        raise UnknownImage(f"Image {name} has no date from which on it is not offered.")
    handler.service.log.info("%s keeps image %s", handler.visitor.actor, name)
    return await image_for(handler, name)
