"""The reconciler of reservations: each pass compares the calendar with Slurm's reservations and makes them equal.

There is no queue of tasks that could be lost or done twice: a pass does what differs. So it does not matter whether a
step was interrupted, a reservation deleted by hand, the service killed between its database and scontrol, or the
controller down for an hour; the next pass that reaches Slurm corrects it. While Slurm does not answer, its state is
unknown, and nothing is changed there.

A pass first changes the states whose time has come (``transitions``), then asks Slurm and notes use and no-shows, then
takes the steps, then rebooks reservations that cannot be kept (``rebooking``). At its end the waitlist is booked as far
as GPUs are free. The next pass comes when the next reservation begins or ends, when ``trigger`` is called, or after the
interval. The reservations service runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from carme_hub.booking.calendar import Supply
from carme_hub.domain.calendar.reservations import PROMISED, Reservation, State
from carme_hub.domain.calendar.slurm_reservations import (
    Create,
    SlurmReservation,
    Step,
    deletions_for_retry,
    plan,
    stem_of,
)
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import CarmeError, SlurmUnreachable
from carme_hub.slurm.cooperative import all_steps
from carme_hub.store.reservations import ReservationStore
from carme_hub.store.threads import in_store_thread

from .rebooking import RETRY_AFTER, Rebooking
from .transitions import SlotLedger, Transitions
from .violations import ObservedSlurm

#: Seconds for which ended reservations are still searched in Slurm, to delete them there.
LOOKBACK = 14 * 86_400
#: Seconds after which a failed pass is tried again; doubled after each failure, up to ``interval``.
RETRY_DELAY = 2.0
#: Shortest pause between two passes, and delay from a reservation's start or end to the pass for it, in seconds.
MIN_PAUSE, EDGE_DELAY = 1.0, 0.1


class SlurmReservations(Protocol):
    """Slurm's reservations as the reconciler uses them; ``carme_hub.slurm.reservations`` implements it."""

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all reservations; raise ``SlurmUnreachable`` if Slurm does not answer."""
        ...

    async def take(self, step: Step) -> str:
        """Take a step; return the message of a refusal, "" otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """Result of one pass.

    Attributes:
        at: epoch seconds. steps: number of steps taken. unreachable: why Slurm's state is unknown, "" if it is known.
        refused: Slurm's message by the name of the reservation that it refused.
        changed: reservations whose state, places or problem the pass has changed.
    """

    at: float
    steps: int = 0
    unreachable: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[Reservation, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether Slurm had all reservations of the calendar before the pass."""
        return not self.unreachable and not self.steps


class ReservationReconciler:
    """Makes Slurm's reservations equal to those of the calendar.

    Args:
        members: returns the users of a hub group now.
        account_users: returns the users of a Slurm account now, () if they are not known. Slurm refuses a whole
            reservation for one user who is not in its account, and whose jobs could not use it anyway.
        ahead: seconds before its start from which a reservation is in Slurm. interval: seconds between two passes.
        ledger: holds of bookings, changed in the transaction of their state; None = there is no ledger.
        jobs: returns the newest answer of squeue, nodes: that of scontrol; None if it is not known now. Without them
            there are no no-shows and no violations.
        supply: returns the GPUs that can be booked, to find other places; None = search none.
        no_show: seconds after which an unused booking is released, 0 = never.
        promote: books drafts of the waitlist.
        on_change: is called in the event loop, after the write, for each reservation whose state, places or problem a
            pass has changed.
    """

    def __init__(
        self,
        store: ReservationStore,
        slurm: SlurmReservations,
        cluster: str,
        *,
        clock: Callable[[], float],
        members: Callable[[str], Collection[str]],
        account_users: Callable[[str], Collection[str]] = lambda _: (),
        ahead: float = 30 * 86_400,
        interval: float = 30.0,
        ledger: SlotLedger | None = None,
        jobs: Callable[[], Snapshot | None] | None = None,
        nodes: Callable[[], Sequence[Node] | None] | None = None,
        supply: Callable[[], Supply] | None = None,
        no_show: int = 0,
        promote: Callable[[float], Awaitable[object]] | None = None,
        on_change: Callable[[Reservation], None] | None = None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
    ) -> None:
        self._store = store
        self._slurm = slurm
        self._cluster = cluster
        self._clock = clock
        self._members = members
        self._account_users = account_users
        self._ahead = ahead
        self._interval = interval
        self._jobs = jobs
        self._nodes = nodes
        self._promote = promote
        self._on_change = on_change or _nobody_told
        self._log = log or logging.getLogger(__name__)
        self._transitions = Transitions(store, cluster, ledger=ledger, no_show=no_show, log=self._log)
        self._rebooking = Rebooking(store, cluster, supply=supply, min_duration=interval)
        self._due = asyncio.Event()
        #: Set at the end of the next pass.
        self._next_pass: asyncio.Future[None] | None = None
        #: When the next reservation begins or ends.
        self._next_edge_at = float("inf")
        #: Users of each reservation in Slurm's last answer, by id; empty = all users of the account.
        self._users: Mapping[str, frozenset[str]] = {}
        #: When reservations were last deleted in favour of a refused one, by its name.
        self._cleared: Mapping[str, float] = {}
        #: Slurm's message by the name of each reservation that it refused in its last answer.
        self._refused: Mapping[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        #: Result of the newest pass, None before the first.
        self.last: Pass | None = None
        #: All reservations in Slurm's last answer, None before the first; they stay while Slurm does not answer.
        self.seen: tuple[SlurmReservation, ...] | None = None

    def start(self) -> None:
        """Start the loop; do nothing if it runs already."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._next_pass = loop.create_future()
            self._task = loop.create_task(self._run(self._next_pass), name="carme-reservation-reconciler")

    async def stop(self) -> None:
        """Stop the loop and wait for its end. Reservations are not changed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._next_pass is not None and not self._next_pass.done():
            self._next_pass.set_result(None)  # release callers that wait for a pass that will not come

    def trigger(self) -> None:
        """Make the next pass at once: something was booked or cancelled."""
        self._due.set()

    async def look(self) -> None:
        """Wait for the end of a pass that begins after this call, successful or not; callers share a pass."""
        if self._next_pass is not None and self._task is not None and not self._task.done():
            self.trigger()
            await asyncio.shield(self._next_pass)

    def has_access(self, id: str, user: str) -> bool:
        """Return whether a user's jobs may use a reservation, by Slurm's last answer."""
        users = self._users.get(id)
        return users is not None and (not users or user in users)

    async def _run(self, next_pass: asyncio.Future[None]) -> None:
        loop, failures, said = asyncio.get_running_loop(), 0, ""
        while True:
            self._due.clear()
            this, next_pass = next_pass, loop.create_future()
            self._next_pass = next_pass
            try:
                await self.once()
            except CarmeError as error:
                failures += 1
                if str(error) != said:
                    self._log.warning("The calendar could not be compared with Slurm; it is tried again: %s", error)
                said = str(error)
            except Exception:  # noqa: BLE001
                # No error may end the loop: reservations must still be kept.
                failures += 1
                self._log.exception("Comparing the calendar with Slurm failed; it is tried again")
            else:
                if failures:
                    self._log.info("The calendar can be compared with Slurm again")
                failures, said = 0, ""
            finally:
                this.set_result(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(failures)):
                    await self._due.wait()

    def _pause(self, failures: int) -> float:
        if failures:
            return min(self._interval, RETRY_DELAY * 2.0 ** min(failures - 1, 16))
        return min(self._interval, max(MIN_PAUSE, self._next_edge_at + EDGE_DELAY - self._clock()))

    async def once(self) -> Pass:
        """Make one pass.

        Raises:
            StoreError: the calendar cannot be read or written now.
        """
        now = self._clock()
        known = await in_store_thread(self._known, now)
        changes = ReservationChanges(known)
        await self._apply(changes, lambda known: self._transitions.by_time(known, now))
        try:
            self.last = await self._with_slurm(changes, now)
        except SlurmUnreachable as error:
            self._transitions.slurm_unknown()
            self.last = Pass(now, unreachable=str(error), changed=changes.changed)
        self._next_edge_at = _next_edge(changes.known, now)
        if self._promote is not None and any(each.waits for each in changes.known):
            await self._promote(now)
        return self.last

    async def _with_slurm(self, changes: ReservationChanges, now: float) -> Pass:
        """Do the part of a pass that needs Slurm; raise ``SlurmUnreachable`` if it does not answer."""
        there = self.seen = await self._slurm.show()
        jobs = self._jobs() if self._jobs is not None else None
        if jobs is not None:
            await all_steps(jobs.read_in_steps())
            await self._apply(changes, lambda known: self._transitions.by_use(known, jobs, now))
        elif self._jobs is not None:
            self._transitions.slurm_unknown()
        wanted, gone = self._wanted(changes.known, there, now)
        steps = plan(wanted, there, obsolete=gone, now=int(now))
        refused = {_name(step): words for step in steps if (words := await self._slurm.take(step))}
        for name, words in refused.items():
            if self._refused.get(name) != words:
                self._log.warning("Slurm refuses reservation %s; it is tried again: %s", name, words)
        self._refused = refused
        if refused and jobs is not None:
            await self._clear_way([step for step in steps if _name(step) in refused], there, jobs, now)
        kept, anew = _kept(changes.known, wanted, steps, refused)
        self._users = kept
        self._transitions.kept(changes.known, kept, anew, now)
        nodes = self._nodes() if self._nodes is not None else None
        if nodes and jobs is not None:
            by_name = {node.name: node for node in nodes}
            seen = ObservedSlurm(int(now), by_name, tuple(jobs.jobs.values()), there, refused)
            before = changes.known
            await self._apply(changes, lambda known: self._rebooking.rebook(known, seen, now))
            if any(old.places != new.places for old, new in zip(before, changes.known, strict=True)):
                self.trigger()  # write the other places to Slurm at once
        return Pass(now, len(steps), "", refused, changes.changed)

    async def _clear_way(
        self, refused: Sequence[Step], there: Sequence[SlurmReservation], jobs: Snapshot, now: float
    ) -> None:
        """Delete reservations that may be in the way of refused ones, to create them again later; once an hour."""
        self._cleared = {name: at for name, at in self._cleared.items() if now - at < RETRY_AFTER}
        new = [step for step in refused if _name(step) not in self._cleared]
        named = {name for job in jobs.jobs.values() for name in job.reservations}
        if deletions := deletions_for_retry(new, there, named=named, now=int(now)):
            for step in deletions:
                await self._slurm.take(step)
            self._cleared |= {_name(step): now for step in new}
            self.trigger()

    async def _apply(
        self, changes: ReservationChanges, step: Callable[[Sequence[Reservation]], list[Reservation]]
    ) -> None:
        """Apply a step of the pass, and call ``on_change`` for each reservation that it changed."""
        for each in changes.now(await in_store_thread(step, changes.known)):
            try:
                self._on_change(each)
            except Exception:  # noqa: BLE001
                # The change is written; a failed notification must not prevent the rest of the pass.
                self._log.exception("The change of reservation %s could not be reported", each.id)

    def _known(self, now: float) -> list[Reservation]:
        with self._store.reading(self._cluster) as reads:
            return reads.changed_since(now - LOOKBACK)

    def _wanted(
        self, known: Sequence[Reservation], there: Sequence[SlurmReservation], now: float
    ) -> tuple[list[SlurmReservation], list[str]]:
        """Return the reservations that Slurm must have now, and the names of ours that it must not have any more."""
        wanted: list[SlurmReservation] = []
        for each in known:
            if each.state in PROMISED and each.period.start - now <= self._ahead:
                parts = each.slurm_reservations(self._members(each.group) if each.group else ())
                wanted += [self._restrict_users(part, each.account) for part in parts]
        names, stems = {each.name for each in wanted}, {each.stem for each in known}
        # Also parts of reservations that are on fewer nodes than before.
        gone = [each.name for each in there if each.ours and each.stem in stems and each.name not in names]
        return wanted, gone

    def _restrict_users(self, part: SlurmReservation, account: str) -> SlurmReservation:
        # Without any user the reservation would be open to the whole account.
        users = part.users & frozenset(self._account_users(account)) if account else part.users
        return replace(part, users=users) if users else part


class ReservationChanges:
    """The reservations during a pass, and those that it has changed."""

    def __init__(self, known: Sequence[Reservation]) -> None:
        self.known = known
        self._changed: dict[str, Reservation] = {}

    def now(self, known: Sequence[Reservation]) -> list[Reservation]:
        """Update the reservations; return those whose visible state has changed."""
        changed = [
            new
            for old, new in zip(self.known, known, strict=True)
            if old is not new and _visible_state(old) != _visible_state(new)
        ]
        self.known = known
        self._changed |= {each.id: each for each in changed}
        return changed

    @property
    def changed(self) -> tuple[Reservation, ...]:
        """Return the changed reservations as they are now."""
        return tuple(self._changed.values())


def _nobody_told(reservation: Reservation) -> None:
    """Do nothing when a reservation has changed."""


def _visible_state(reservation: Reservation) -> tuple[object, ...]:
    return reservation.state, reservation.places, reservation.problem


def _kept(
    known: Sequence[Reservation],
    wanted: Sequence[SlurmReservation],
    steps: Sequence[Step],
    refused: Mapping[str, str],
) -> tuple[dict[str, frozenset[str]], set[str]]:
    """Return the users of each reservation that Slurm has completely now, by id, and the ids that it had not before."""
    lacking = {stem_of(name) for name in refused}
    anew = {step.wanted.stem for step in steps if isinstance(step, Create)}
    users = {each.stem: each.users for each in wanted if each.stem not in lacking}
    kept = {each.id: users[each.stem] for each in known if each.stem in users}
    return kept, {each.id for each in known if each.id in kept and each.stem in anew}


def _next_edge(known: Iterable[Reservation], now: float) -> float:
    """Return when the next reservation begins or ends; infinity if none does."""
    starts = (each.period.start for each in known if each.state in (State.PENDING, State.CONFIRMED))
    ends = (each.period.end for each in known if each.state in PROMISED)
    return min((at for at in (*starts, *ends) if at > now), default=float("inf"))


def _name(step: Step) -> str:
    return step.wanted.name if isinstance(step, Create) else step.name
