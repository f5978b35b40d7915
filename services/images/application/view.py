"""The catalogue as pages and REST show it: one read of the database, then pure functions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from carme_hub.domain.images.offers import CatalogueImage, Offer, To
from carme_hub.domain.images.start_times import Fetching, Held, duration, fetching, size_text
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.wording import day
from carme_hub.images.offered import ImageView
from carme_hub.services.images.application.fit import ProfileFit, profiles_for, try_in

#: Images on one page.
PAGE = 50
UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Site:
    """What the catalogue is seen against.

    Attributes:
        view: images, copies and starts. users: of open sessions, by image. nodes: names of the cluster's nodes.
        profiles: of the site, () = not known. drivers: by GPU type. keeps_copies: whether nodes fetch images.
    """

    view: ImageView
    users: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nodes: Collection[str] = ()
    profiles: Sequence[Profile] = ()
    drivers: Mapping[str, str] = field(default_factory=dict)
    keeps_copies: bool = False
    now: float = 0.0

    def fetching(self, image: CatalogueImage) -> Fetching | None:
        """Return whether nodes have to fetch an image; None where they use the store, or it has no digest."""
        if not self.keeps_copies or not image.digest:
            return None
        view = self.view
        return fetching(image.digest, image.size, self.nodes, view.held, view.rate, view.answering)


@dataclass(frozen=True, slots=True)
class Row:
    """One image of the catalogue, as texts; "" = not known, or there is nothing to say.

    Attributes:
        inside: (name, version) of what is in it. offered: by whom to whom. sessions: that use it now.
        start: how long a start takes. fetch: whether it starts at once. fits: lines about GPUs, with what they are.
        until: from when on it is not offered. ended: it is not offered any more. slug: of the profile of *Try it*.
    """

    name: str
    description: str
    inside: Sequence[tuple[str, str]]
    size: str
    digest: str
    short: str
    tag: str
    offered: Sequence[str]
    sessions: int
    start: str
    fetch: str
    fits: Sequence[Mapping[str, str]]
    until: str
    ended: bool
    gone: bool
    startable: bool
    slug: str


def row_of(image: CatalogueImage, site: Site, user: str, groups: Sequence[str], *, everything: bool) -> Row:
    """Return an image as a page shows it to a user; ``everything``: with what concerns other people only."""
    fits = profiles_for(image, site.profiles, site.drivers)
    found = site.fetching(image)
    usual = site.view.starts.get(image.name, 0.0)
    retirement = image.retirement
    return Row(
        name=image.name,
        description=image.description,
        inside=list(image.contents.named()),
        size=size_text(image.size),
        digest=image.digest,
        short=image.digest[:19],
        tag=tag_of(image),
        offered=[words_of(each) for each in offers_shown(image, user, groups, everything=everything)],
        sessions=len(site.users.get(image.name, ())),
        start=f"about {duration(usual)}" if usual else "",
        fetch=found.sentence() if found is not None else "",
        fits=gpu_lines(fits),
        until=day_of(retirement.date) if retirement is not None else "",
        ended=image.is_retired(site.now),
        gone=bool(image.gone),
        startable=image.is_startable(user, groups, site.now) and (bool(fits) or not site.profiles),
        slug=try_in(fits),
    )


def visible(
    images: Sequence[CatalogueImage], user: str, groups: Sequence[str], *, everything: bool, now: float
) -> list[CatalogueImage]:
    """Return the images that a visitor sees: all, or those that they are offered and that are there."""
    return [each for each in images if everything or each.is_startable(user, groups, now)]


def page_of(images: Sequence[CatalogueImage], words: str, number: int) -> tuple[list[CatalogueImage], int, int]:
    """Return one page of the images that match, how many match, and the number of the page."""
    found = [each for each in images if each.matches(words)]
    pages = max(1, math.ceil(len(found) / PAGE))
    number = min(max(1, number), pages)
    return found[(number - 1) * PAGE : number * PAGE], len(found), number


def gpu_lines(fits: Sequence[ProfileFit]) -> list[dict[str, str]]:
    """Return a line for profiles with GPUs, one where the answer is the same; ``state``: fits, no or unknown."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in fits:
        if each.profile.gpus is not None:
            state = {True: "fits", False: "no", None: "unknown"}[each.fit.fits]
            names.setdefault((state, each.fit.why), []).append(each.profile.display_name)
    return [{"profile": ", ".join(some), "state": state, "why": why} for (state, why), some in names.items()]


def offers_shown(image: CatalogueImage, user: str, groups: Sequence[str], *, everything: bool) -> list[Offer]:
    """Return the offers of an image that a user sees, that of the administrator's list first.

    Args:
        everything: also those to others; an image's owner sees all of its offers.
    """
    found = [*([Offer(To.EVERYBODY)] if image.listed else []), *image.offers]
    return found if everything or image.belongs_to(user) else [each for each in found if each.is_for(user, groups)]


def try_link(hub_prefix: str, image: str, slug: str) -> str:
    """Return the address that leads to the form with an image filled in, which starts nothing."""
    options = {**({"opt-profile": slug} if slug else {}), "opt-image": image}
    return f"{quote(hub_prefix)}carme/images/start?{urlencode(options)}"


def words_of(offer: Offer) -> str:
    """Return an offer as words."""
    to = {To.EVERYBODY: "everybody", To.GROUP: f"group {offer.name}", To.USER: offer.name}[offer.to]
    return f"to {to} by {offer.by or 'the administrators'}"


def tag_of(image: CatalogueImage) -> str:
    """Return which tag stood for an image, and since when it was resolved."""
    if not image.tag:
        return ""
    return f"{image.tag}, resolved {image.resolved[:10]}" if image.resolved else image.tag


def day_of(at: float) -> str:
    """Return a date in UTC."""
    return day(datetime.fromtimestamp(at, UTC))


def ago(seconds: float) -> str:
    """Return how long ago something was."""
    if seconds < 90:
        return "just now"
    if seconds < 5400:
        return f"{round(seconds / 60)} min ago"
    return f"{round(seconds / 3600)} h ago" if seconds < 172_800 else f"{round(seconds / 86_400)} days ago"


@dataclass(frozen=True, slots=True)
class Copy:
    """An image on a node, or one that it could not fetch (``problem``)."""

    name: str
    digest: str
    size: str
    fetched: str
    problem: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the board. ``said``: how long ago it said what it has, "" = never; ``old``: that is too long ago."""

    node: str
    said: str
    old: bool
    driver: str
    free: str
    copies: Sequence[Copy]
    wanted: Sequence[str]


def by_image(rows: Sequence[NodeRow]) -> list[tuple[str, str, int]]:
    """Return the images that nodes have, by name: each with its digest, and the nodes of late that have it."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        for each in row.copies:
            found[each.name, each.digest] = found.get((each.name, each.digest), 0) + (not row.old and not each.problem)
    return [(name, digest, count) for (name, digest), count in sorted(found.items())]


def node_row(
    node: str,
    about: Any,
    held: Sequence[Held],
    names: Mapping[str, str],
    wanted: Sequence[str],
    now: float,
    most_age: float,
) -> NodeRow:
    """Return a node for the board.

    Args:
        about: what it last said of itself, None = nothing. names: of images, by digest. wanted: names of images that
            bookings need on it.
    """
    age = now - about.at if about is not None else 0.0
    copies = [
        Copy(
            names.get(each.digest, "an image that is not in the catalogue"),
            each.digest,
            size_text(each.size),
            f"fetched in {duration(each.seconds)}" if each.seconds else "",
            each.problem,
        )
        for each in held
    ]
    return NodeRow(
        node=node,
        said=ago(age) if about is not None else "",
        old=about is None or age > most_age,
        driver=about.driver if about is not None else "",
        free=size_text(about.free) if about is not None else "",
        copies=sorted(copies, key=lambda each: each.name),
        wanted=wanted,
    )
