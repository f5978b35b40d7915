"""What the REST interface takes and gives, as pydantic models; the OpenAPI document is made from them.

A moment that is asked for is either UTC epoch seconds, or a time on the wall of the zone that is named beside it; all
answers have UTC epoch seconds. GPU time is in whole milli-GPU-seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from carme_hub.services.fields import Error, Moment, Name, RequestBody, Whole

_TITLE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f\x85][^\x00-\x1f\x7f]*$"
_WALL = r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$"
#: A UUID of ours.
ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"

Wall = Annotated[str, Field(pattern=_WALL, description="a time on the wall of the zone, such as 2026-11-24T09:00")]
When = Moment | Wall
Zone = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$", description="IANA time zone")]
Title = Annotated[str, Field(min_length=1, max_length=200, pattern=_TITLE)]
GpuType = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Seat = Annotated[int, Field(ge=0, le=1024, description="GPUs of one seat; 0 is a whole node of this type"), Whole]
Seats = Annotated[int, Field(ge=1, le=1024), Whole]
Version = Annotated[int, Field(ge=1, le=2**31 - 1, description="of the booking that was looked at"), Whole]
Said = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
NodeName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
#: Of a booking that comes again: this time alone, this one and the later ones, or all.
Series = Literal["one", "later", "all"]
State = Literal["draft", "pending", "confirmed", "active", "ended", "cancelled", "released"]


class AskIn(RequestBody):
    """What is asked for. ``rule`` is an RRULE of RFC 5545 with COUNT or UNTIL, "" for once.

    ``account``: who pays, the visitor's first where it is left out. ``owner``: for whom an administrator books it;
    everybody else leaves it out. ``group``: a hub group, ``users``: more people,
    ``everybody``: all users of the account; they may start sessions in it, as the owner may. ``profile``: with which
    its seats start, "" for any. ``without``: starts on the wall that ``rule`` would give and that are left out.
    """

    title: Title
    gpu_type: GpuType
    gpus: Seat
    seats: Seats = 1
    start: When
    end: When
    zone: Zone = "UTC"
    rule: Annotated[str, Field(max_length=300, pattern=r"^[A-Za-z0-9=;,:+-]*$")] = ""
    without: Annotated[list[Wall], Field(max_length=366)] = []
    account: Name | None = None
    owner: Name | None = None
    users: Annotated[list[Name], Field(max_length=500)] = []
    group: Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    everybody: bool = False
    profile: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")] = ""


class BookIn(AskIn):
    """A booking. ``wait``: where not everything is free, wait for it, and be booked when it is."""

    wait: bool = False


class CheckIn(AskIn):
    """A booking that is looked at before it is made. ``instead_of``: the one that would be moved to this."""

    instead_of: Annotated[str, Field(pattern=rf"^$|{ID}")] = ""


class MoveIn(RequestBody):
    """What is changed of a booking; what is left out stays. ``start`` and ``end`` are of the one that is named."""

    version: Version
    start: When | None = None
    end: When | None = None
    zone: Zone | None = None
    gpu_type: GpuType | None = None
    gpus: Seat | None = None
    seats: Seats | None = None
    title: Title | None = None
    series: Series = "one"


class CancelIn(RequestBody):
    """A booking is taken back before it starts."""

    series: Series = "one"
    reason: Said = ""


class ReleaseIn(RequestBody):
    """What is left of a booking that has begun is given back."""

    reason: Said = ""


class DecisionIn(RequestBody):
    """The answer to a booking that waits for approval: to all its times."""

    decision: Literal["approve", "deny"]
    reason: Said = ""


class MaintenanceIn(RequestBody):
    """Nodes on which nobody's jobs run for a time. What was booked there is told to its owners."""

    nodes: Annotated[list[NodeName], Field(min_length=1, max_length=10_000)]
    start: When
    end: When
    zone: Zone = "UTC"
    title: Title = "Maintenance"


class FeedIn(RequestBody):
    """A new secret address of the visitor's own bookings; the one before stops working."""


class SpanOut(BaseModel):
    """From ``start`` to ``end``, which is not within it any more."""

    start: int
    end: int


class PlaceOut(BaseModel):
    """What a booking has on one node. ``whole``: nobody else is there; ``also``: its GPUs of other types."""

    node: str
    gpu_type: str
    gpus: int
    seats: int
    whole: bool
    also: dict[str, int] = {}


class BookingOut(BaseModel):
    """One time of a booking.

    Attributes:
        hidden: it is others', and who and what for is not for the visitor to see: id, title, owner and the like are "".
        mine: the visitor owns it. invited: it is for the visitor, who may start sessions in it.
        gpus: of one seat, 0 = whole nodes; total: all that it takes, and by_type: how many of each type, its own first.
        series: "" for what comes once.
        waits: a draft on the waitlist. problem: why it cannot be kept as promised, "" while it can.
        may: what the visitor may do with it now. amount: milli-GPU-seconds × price of its whole period, null where it
            is hidden or nothing is kept of GPU time.
        slurm: names of its reservations in Slurm, once they are due there.
    """

    id: str
    kind: Literal["booking", "maintenance"]
    state: State
    title: str
    owner: str
    account: str
    gpu_type: str
    gpus: int
    seats: int
    total: int
    by_type: dict[str, int] = {}
    start: int
    end: int
    zone: str
    series: str
    occurrence: str
    users: list[str]
    group: str
    everybody: bool
    profile: str
    places: list[PlaceOut]
    waits: bool
    problem: str
    reason: str
    actor: str
    created: int
    changed: int
    used: int
    ended: int
    version: int
    hidden: bool
    mine: bool
    invited: bool
    may: list[Literal["move", "cancel", "release", "decide"]]
    amount: int | None
    slurm: list[str]


class BookingsOut(BaseModel):
    """Bookings by their start; ``at`` is now."""

    at: int
    bookings: list[BookingOut]


class ConflictOut(SpanOut):
    """A time that cannot be had, and what could be.

    ``times``: the nearest free ones. ``seats``: how many could be had then, 0 for none. ``types``: other GPU types of
    which it could be had then. Only the first few conflicts say what else could be.
    """

    occurrence: str
    times: list[SpanOut]
    seats: int
    types: list[str]


class MaintenanceOut(BaseModel):
    """A maintenance window, and the bookings that have other places because of it, or a ``problem``."""

    at: int
    maintenance: BookingOut
    changed: list[BookingOut]


class TakenOut(Error):
    """A refusal. With ``slot-taken`` there are the times that are not free, and what could be had instead."""

    conflicts: list[ConflictOut] = []


class TimeOut(SpanOut):
    """One time of what was asked for. ``note``: a sentence where clocks change in it, "" otherwise."""

    occurrence: str
    note: str


class CheckOut(BaseModel):
    """What would become of it; nothing is written.

    Attributes:
        granted: it could be booked now. refusal: why not, as a sentence, and ``reason`` its slug; "" where only other
            bookings are in the way.
        needs_approval: it would wait for an administrator. amount: milli-GPU-seconds × price of all its times, null
            where nothing is kept of GPU time. total: GPUs that each time takes.
        notes: what Slurm does not keep exactly as it is asked for.
    """

    granted: bool
    refusal: str
    reason: str
    needs_approval: bool
    amount: int | None
    total: int
    times: list[TimeOut]
    conflicts: list[ConflictOut]
    notes: list[str]


class PartOut(SpanOut):
    """How many GPUs are free throughout a part of the time that was asked for."""

    free: int


class BandOut(BaseModel):
    """The GPUs of one type that are free over time: parts that follow each other, each unlike the next."""

    gpu_type: str
    total: int
    parts: list[PartOut]


class FreeOut(BaseModel):
    """What is free, by GPU type."""

    start: int
    end: int
    types: list[BandOut]


class TypeOut(BaseModel):
    """A GPU type: how many there are, how many the largest node has, and how many may be booked at one moment."""

    gpu_type: str
    total: int
    largest: int
    bookable: int


class NodeOut(BaseModel):
    """A node that can be booked. ``out``: it is down or drained now."""

    name: str
    state: str
    out: bool
    gpus: dict[str, int]


class SupplyOut(BaseModel):
    """What can be booked at all, as Slurm said ``at``. ``known`` is false until Slurm has said anything.

    ``keeps``: whether Slurm reserves single ``gpus``, whole ``nodes``, or a licence for each GPU (``licenses``).
    ``notes``: what it does not keep exactly.
    ``may_book``: whether the policy lets the visitor book at all. ``accounts``: those that the visitor may charge.
    """

    at: int
    known: bool
    keeps: Literal["gpus", "nodes", "licenses"]
    notes: list[str]
    types: list[TypeOut]
    nodes: list[NodeOut]
    may_book: bool
    accounts: list[str]


class FeedOut(BaseModel):
    """The visitor's feed; ``made`` 0: there is none. ``address`` is said when it is made: only its digest is kept."""

    made: int
    address: str


class WordsOut(BaseModel):
    """What the next hours look like, in sentences."""

    at: int
    sentences: list[str]


class HealthOut(BaseModel):
    """Whether Slurm's reservations are kept equal to the calendar.

    ``age``: seconds since the last comparison that Slurm answered, null for never. ``equal``: whether nothing had to be
    changed then. ``faults``: why GPUs that are counted by licences are not kept, in sentences.
    """

    keeping: bool
    age: int | None
    equal: bool
    faults: list[str]
