"""A Slurm that keeps reservations, forged in memory, and what else the keeper sees of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, Supply
from carme_hub.booking.reconcile.outages import OutageCredit
from carme_hub.booking.reconcile.reconciler import Pass, ReservationReconciler
from carme_hub.domain.calendar.bookable_nodes import inventory_of
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.calendar.slurm_reservations import Change, Create, Delete, SlurmReservation, Step
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.store.ledger.writes import LedgerStore, LedgerWrites
from carme_hub.store.reservations import ReservationStore

NOW, HOUR = 1_795_000_000, 3600


@dataclass
class SlurmWithReservations:
    """A Slurm that keeps reservations by its own rules, may be down, lose its answer or be killed between two steps."""

    now: float = NOW
    there: dict[str, SlurmReservation] = field(default_factory=dict)
    down: bool = False
    dies_after: int = 10**9
    in_use: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    licenses: int = 8

    async def show(self) -> tuple[SlurmReservation, ...]:
        if self.down:
            raise SlurmUnreachable("connection refused")
        self.there = {name: each for name, each in self.there.items() if each.period.end > self.now}
        return tuple(self.there.values())

    async def take(self, step: Step) -> str:
        self.dies_after -= 1
        if self.dies_after < 0:
            raise SlurmUnreachable("Socket timed out")
        match step:
            case Create(wanted):
                if wanted.nodes & self.busy:
                    return "Error creating the reservation: Requested nodes are busy"
                if wanted.licenses and self._added_up(wanted) > self.licenses:
                    return "Error creating the reservation: Invalid license specification"
                assert wanted.name not in self.there
                assert wanted.period.start >= int(self.now)
                self.there[wanted.name] = replace(wanted, state="INACTIVE")
            case Delete(name):
                if name in self.in_use:
                    return "Requested reservation is in use"
                del self.there[name]
            case Change(name, period, users, accounts, licenses):
                have = replace(self.there[name], licenses=licenses or self.there[name].licenses)
                who = {"users": users, "accounts": accounts} if users or accounts else {}
                self.there[name] = replace(have, period=period or have.period, **who)
        return ""

    def _added_up(self, wanted: SlurmReservation) -> int:
        """Return what Slurm takes to be reserved: all that overlaps, whether at the same moment or not."""
        there = (each for each in self.there.values() if each.period.overlaps(wanted.period))
        return sum(sum(each.licenses.values()) for each in (wanted, *there))


@dataclass
class LedgerThatNotes:
    """Money that only writes down what it was asked, and may be out of order."""

    done: list[tuple[object, ...]] = field(default_factory=list)
    unmanaged: list[int] = field(default_factory=list)
    broken: bool = False

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        self._note(writes, "over", reservation.id, reservation.state.value, int(now))

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        self._note(writes, "give back", reservation.id, reason, actor)

    def lower_hold(
        self, writes: LedgerWrites, reservation: Reservation, now: float, inside: Collection[str], unmanaged: int
    ) -> None:
        self._note(writes, "level", reservation.id, tuple(sorted(inside)), int(now))
        self.unmanaged.append(unmanaged)

    def credit_outage(self, writes: LedgerWrites, reservation: Reservation, owed: OutageCredit, now: float) -> None:
        self._note(writes, "lapse", reservation.id, owed.more, owed.least)

    def lapsed(self, reservation: Reservation) -> int:
        """Return the GPU-seconds of a booking that are not to be charged."""
        total = 0
        for what, id, *amounts in self.done:
            if what == "lapse" and id == reservation.id:
                more, least = (int(str(each)) for each in amounts)
                total = max(total, least) + more
        return total

    def _note(self, writes: LedgerWrites, *what: object) -> None:
        assert isinstance(writes, LedgerWrites)
        if self.broken:
            raise RuntimeError("the ledger is stuck")
        self.done.append(what)


@dataclass
class Kept:
    """A calendar of two nodes with four GPUs each, its keeper, and all that the keeper sees."""

    store: LedgerStore
    slurm: SlurmWithReservations = field(default_factory=SlurmWithReservations)
    ledger: LedgerThatNotes = field(default_factory=LedgerThatNotes)
    told: list[Reservation] = field(default_factory=list)
    promoted: list[float] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    blind: bool = False
    stale: bool = False
    deaf: bool = False
    by_node: bool = False
    licenses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {name: node(name) for name in ("n1", "n2")}
        self._answers = 0
        reservations = ReservationStore(self.store, licenses=self.licenses)
        self.calendar = Calendar(reservations, "lab", self.supply, lambda: self.slurm.now)
        self.keeper = self.new_keeper()

    def new_keeper(self) -> ReservationReconciler:
        return ReservationReconciler(
            self.calendar.store,
            self.slurm,
            "lab",
            clock=lambda: self.slurm.now,
            members=lambda _: (),
            ledger=self.ledger,
            jobs=self.snapshot,
            nodes=lambda: tuple(self.nodes.values()),
            supply=self.supply,
            no_show=900,
            promote=self.promote,
            on_change=self.tell,
        )

    def supply(self) -> Supply:
        inventory = inventory_of(self.nodes.values())
        return Supply(inventory, by_node=self.by_node, by_license=bool(self.licenses))

    def snapshot(self) -> Snapshot | None:
        if self.blind:
            return None
        asked = self._answers = self._answers if self.stale else self._answers + 1
        return Snapshot(float(asked), asked + 0.1, {job.id: job for job in self.jobs})

    def tell(self, reservation: Reservation) -> None:
        if self.deaf:
            raise RuntimeError("no mail today")
        self.told.append(reservation)

    async def promote(self, now: float) -> None:
        self.promoted.append(now)

    async def book(
        self, start: float = 1, hours: float = 2, *, gpus: int = 1, seats: int = 2, state: State = State.CONFIRMED
    ) -> Reservation:
        begin = NOW + int(start * HOUR)
        times = [RequestedTime(Period(begin, begin + int(hours * HOUR)))]
        wish = BookingRequest("tina", "teaching", "A class", Need("a100", gpus, seats if gpus else 1), times)
        (booked,) = await self.calendar.book(wish, state=state)
        return booked

    async def at(self, seconds: float, *, interval: float = 30) -> Pass:
        """Make the passes up to so many seconds after NOW; return the last."""
        while self.slurm.now + interval < NOW + seconds:
            self.slurm.now += interval
            await self.keeper.once()
        self.slurm.now = NOW + seconds
        return await self.keeper.once()

    def get(self, reservation: Reservation) -> Reservation:
        with self.calendar.store.reading("lab") as reads:
            found = reads.get(reservation.id)
        assert found is not None
        return found

    def save(self, changed: Reservation) -> None:
        with self.calendar.store.transaction("lab") as writes:
            writes.save(changed.replace(version=changed.version + 1))

    def run(self, *nodes: str, inside: Reservation | None = None, name: str = "carme-s1", **more: object) -> Job:
        """Have a job run on these nodes, with one GPU on each and without a time limit."""
        job = Job(
            len(self.jobs) + 1,
            name,
            "bob",
            "RUNNING",
            Phase.ACTIVE,
            nodes=nodes,
            start=self.slurm.now,
            gpus=Gpus("a100", len(nodes)),
            reservation=",".join(inside.names()) if inside else "",
        )
        self.jobs.append(replace(job, **more))
        return self.jobs[-1]


def node(name: str, state: str = "idle", *, gpus: int = 4, flags: Collection[str] = (), shards: int = 0) -> Node:
    """Return a node with GPUs."""
    shared = {"a100": shards} if shards else {}
    return Node(name, state, state == "idle", cpus=32, gpus={"a100": gpus}, flags=frozenset(flags), shards=shared)
