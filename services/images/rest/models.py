"""What REST takes and answers; null and "" are unknown. Times are UTC epoch seconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from carme_hub.services.fields import Moment, Query, Reason, RequestBody, Whole

#: Patterns of an image's name, of a node's, and of a digest.
NAME, NODE, DIGEST = r"^[a-z0-9][a-z0-9._-]{0,63}$", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$", r"^sha256:[0-9a-f]{64}$"
#: Pattern of the id of an image that a user has built.
BUILD = r"^[0-9a-f-]{36}$"
#: Images that one node reports.
MOST_COPIES = 1000


class ImagesQuery(Query):
    """``q``: words that are somewhere in what is known of an image. ``page``: 50 images each."""

    q: Annotated[str, Field(max_length=200)] = ""
    page: Annotated[int, Field(ge=1, le=10_000)] = 1


class InsideOut(BaseModel):
    """Versions that were found inside."""

    python: str
    cuda: str
    torch: str
    jupyterlab: str
    jupyterhub: str


class OfferOut(BaseModel):
    """``to``: everybody, group or user. ``by``: "" for the administrator's list."""

    to: str
    name: str
    by: str
    at: int


class RetirementOut(BaseModel):
    """From when on it is not offered, and why. ``told``: when those whose sessions have it were told, 0 = not yet."""

    date: int
    reason: str
    by: str
    at: int
    told: int


class FitOut(BaseModel):
    """Whether an image fits a profile's GPUs: ``fits`` is null where that is not known."""

    profile: str
    fits: bool | None
    why: str


class FetchOut(BaseModel):
    """On how many nodes an image is, of how many, and how many do not say it; ``seconds`` of a fetch, 0 = not known."""

    nodes: int
    there: int
    silent: int
    seconds: float
    sentence: str


class ImageOut(BaseModel):
    """One image. ``start_seconds``: of a usual start, null = not measured. ``fetch``: null where nothing is fetched."""

    name: str
    description: str
    digest: str
    tag: str
    resolved: str
    source: str
    size_bytes: int
    files: int
    added_by: str
    added: str
    format: str
    base: str
    labels: dict[str, str]
    licences: dict[str, int]
    provides: list[str]
    inside: InsideOut
    offers: list[OfferOut]
    retirement: RetirementOut | None
    sessions: int
    users: list[str]
    start_seconds: float | None
    fetch: FetchOut | None
    fits: list[FitOut]
    gone: bool
    try_it: str


class ImagesOut(BaseModel):
    """A page of images by name; ``count``: how many match."""

    page: int
    count: int
    images: list[ImageOut]


class RetireIn(RequestBody):
    """From when on, and why; users read it."""

    date: Moment
    reason: Reason


class OfferIn(RequestBody):
    """``to``: everybody, group or user; ``name`` of the group or user.

    ``with_base``: an administrator knows that an image below is not offered to them, and is passed on.
    """

    to: Annotated[str, Field(pattern="^(everybody|group|user)$")]
    name: Annotated[str, Field(max_length=255)] = ""
    with_base: bool = False


class OfferQuery(Query):
    """Which offer is taken back."""

    to: Annotated[str, Field(pattern="^(everybody|group|user)$")]
    name: Annotated[str, Field(max_length=255)] = ""


class WantedOfferOut(BaseModel):
    """To whom a user wants an image offered. ``allowed``: by whom; ``problem``: why it is not published, for good.

    ``digest``, ``found``: of what was taken and scanned for an administrator, where ``needs_leave``, and its packages
    beside the base's; ``beyond``: why it passes on its base; ``void``: why an approval does not count any more;
    ``waiting``: why it could not be published yet; ``again``: when it is tried again.
    """

    to: str
    name: str
    by: str
    at: int
    allowed: str
    problem: str
    digest: str
    found: str
    needs_leave: bool
    beyond: str
    void: str
    waiting: str
    again: int


class BuildOut(BaseModel):
    """An image that a user has built. ``until``: when it is removed if unused. ``published``: as which image."""

    id: str
    name: str
    user: str
    state: str
    problem: str
    base: str
    base_digest: str
    packages: str
    created: int
    used: int
    until: int
    published: str
    wanted: WantedOfferOut | None


class BuildsOut(BaseModel):
    """Images that users have built, oldest first."""

    builds: list[BuildOut]


class DecisionIn(RequestBody):
    """Whether they are offered it, and why not: its user reads it.

    ``digest``: that is allowed. ``with_base``: an image below is passed on to people who are not offered it.
    """

    allow: bool
    digest: Annotated[str, Field(pattern=f"{DIGEST}|^$")] = ""
    with_base: bool = False
    reason: Annotated[str, Field(max_length=500)] = ""


class CopyIn(RequestBody):
    """An image on a node, or with ``problem`` why it is not there. 0 = not known."""

    digest: Annotated[str, Field(pattern=DIGEST)]
    at: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] = 0.0
    seconds: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)] = 0.0
    size: Annotated[int, Field(ge=0, le=1 << 50), Whole] = 0
    problem: Annotated[str, Field(max_length=500)] = ""


class NodeIn(RequestBody):
    """All that a node has, in place of what it had. ``driver``: of its GPUs. ``free``: bytes for images."""

    driver: Annotated[str, Field(max_length=40, pattern=r"^[0-9A-Za-z.]*$")] = ""
    free: Annotated[int, Field(ge=0, le=1 << 60), Whole] = 0
    images: Annotated[list[CopyIn], Field(max_length=MOST_COPIES)]


class CopyOut(BaseModel):
    """An image on a node; ``image``: its name, "" = it is not in the catalogue."""

    digest: str
    image: str
    at: int
    seconds: float
    size_bytes: int
    problem: str


class NodeOut(BaseModel):
    """What a node has. ``reported``: when it said so, 0 = never. ``wanted``: images that bookings need there soon."""

    node: str
    reported: int
    driver: str
    free_bytes: int
    images: list[CopyOut]
    wanted: list[str]


class NodesOut(BaseModel):
    """The board of nodes, by name."""

    nodes: list[NodeOut]


class WantedOut(BaseModel):
    """What a node is to fetch, the most urgent first: digests, with ``.sqfs`` for an image that is one file."""

    images: list[str]
