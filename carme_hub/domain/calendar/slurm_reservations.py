"""Compare Slurm's reservations with the bookings, and plan what to create, change and delete. Pure.

The calendar's reconciler calls ``plan`` and carries out its steps. A booking has one Slurm reservation for each node
that its seats are on (a job names all of them, and starts in one with free GPUs), or one for all its whole nodes. Each
name contains our id. What Slurm cannot change is deleted and created again: a reservation of single GPUs keeps its
nodes and GPUs (seen on 24.11: "Core-based reservation can not be updated"), and one that has begun keeps its start.
Reservations without an id of ours are never changed; manual ones only occupy capacity.

If Slurm counts GPUs by licences, a booking is one reservation of licences without nodes. All of it can be changed, also
while jobs run in it (seen on 22.05 and 24.11), so it is never created again.

A reservation that was released while a job still runs in it can be neither deleted nor shortened: Slurm refuses both
("Requested reservation is in use"). Its deletion is planned in each round until the job has ended.

A booking has none of Slurm's flags (scontrol(1)). PURGE_COMP deletes a reservation that is idle for a while: a user who
pauses would lose it, and we decide ourselves when it counts as unused (no-show), with the refund. FLEX lets jobs run
on after its end and on other nodes, which others may have booked. MAGNETIC pulls jobs into a reservation that did not
request it, so that they take seats of others. Maintenance has MAINT, which may overlap bookings, and IGNORE_JOBS,
because users of running jobs are notified and cannot prevent it. A reservation of licences has ANY_NODES, which Slurm
requires if no node is named. Slurm adds flags by itself (SPEC_NODES).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from .periods import Period

PREFIX = "carme-"
#: Seconds by which times may differ; Slurm stores whole seconds.
TIME_TOLERANCE = 1
#: A reservation that starts in fewer seconds is not deleted in favour of another one.
_MIN_LEAD = 120
#: Flags of reservations in which no ordinary jobs run.
MAINTENANCE_FLAGS = frozenset({"MAINT"})
#: Flags of our own maintenance windows: they may overlap bookings and running jobs.
OWN_MAINTENANCE_FLAGS = MAINTENANCE_FLAGS | {"IGNORE_JOBS"}
#: The flag of a reservation of licences only; LICENSE_ONLY is another name for it.
LICENSE_ONLY_FLAGS = frozenset({"ANY_NODES"})


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """A reservation as Slurm shows it, or as Slurm should have it.

    Attributes:
        gpus: by type; {} = whole nodes. cpus: of all its nodes together, 0 = all CPUs of the nodes.
        licenses: number by name.
        users, accounts: who may use it; if both are set, a job must match both (scontrol(1)).
        flags: as Slurm prints them, in upper case, without values.
        state: ``ACTIVE`` or ``INACTIVE``; "" if Slurm does not have it yet.
    """

    name: str
    period: Period
    nodes: frozenset[str]
    gpus: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 0
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    state: str = ""
    licenses: Mapping[str, int] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether the name has our prefix."""
        return self.name.startswith(PREFIX)

    @property
    def maintenance(self) -> bool:
        """Whether it is a maintenance window."""
        return bool(self.flags & MAINTENANCE_FLAGS)

    @property
    def stem(self) -> str:
        """Return the common beginning of the names of all reservations of one booking."""
        return stem_of(self.name)


def stem_of(name: str) -> str:
    """Return a name without the number at its end."""
    return name.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a reservation."""

    wanted: SlurmReservation


@dataclass(frozen=True, slots=True)
class Change:
    """Change a reservation: None and empty values stay as they are; the others are replaced as a whole."""

    name: str
    period: Period | None = None
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    licenses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a reservation. Slurm refuses while a job runs in it."""

    name: str


Step = Create | Change | Delete


def plan(
    wanted: Iterable[SlurmReservation], existing: Iterable[SlurmReservation], *, obsolete: Collection[str], now: int
) -> tuple[Step, ...]:
    """Return the steps from Slurm's reservations to the wanted ones: deletions first, since they free capacity.

    Args:
        existing: all of Slurm's. obsolete: names of ours that are no longer wanted; other names are left alone.
        now: epoch seconds; a reservation that is over is neither created nor changed.
    """
    known = {each.name: each for each in existing}
    deletions: list[Step] = [Delete(name) for name in sorted(obsolete) if name in known]
    changes: list[Step] = []
    for want in sorted(wanted, key=lambda each: (each.period, each.name)):
        have = known.get(want.name)
        if want.period.end <= now:
            continue
        if have is None:
            changes.append(Create(_from(want, now)))
        elif not _same(want, have) or have.period.start <= now < want.period.start - TIME_TOLERANCE:
            deletions.append(Delete(want.name))
            changes.append(Create(_from(want, now)))
        elif (change := _change(want, have, now)) is not None:
            changes.append(change)
    return (*deletions, *changes)


def deletions_for_retry(
    refused: Iterable[Step], existing: Iterable[SlurmReservation], *, named: Collection[str], now: int
) -> tuple[Delete, ...]:
    """Return the reservations of licences to delete so that Slurm accepts what it has refused; they are created again.

    Slurm adds up all reservations of a licence that a new one overlaps, even if no two of them overlap each other (seen
    on 22.05 and 24.11). Created in the order of their starts, none is refused without need: all that a new one overlaps
    is active at its start. So those that start later are deleted, and the next plan creates them in that order.

    Args:
        existing: all of Slurm's. named: those that jobs name; they stay, because Slurm would hold these jobs.
    """
    known = {each.name: each for each in existing}
    found: set[str] = set()
    for step in refused:
        match step:
            case Create(wanted):
                period, licenses = wanted.period, wanted.licenses
            case Change(name, moved, _, _, counted) if name in known:
                period, licenses = moved or known[name].period, counted or known[name].licenses
            case _:
                continue
        found |= {
            each.name
            for each in known.values()
            if each.ours and not licenses.keys().isdisjoint(each.licenses)
            if each.period.overlaps(period) and each.period.start > max(period.start, now + _MIN_LEAD)
        }
    return tuple(Delete(name) for name in sorted(found - set(named)))


def _from(want: SlurmReservation, now: int) -> SlurmReservation:
    """Return the remaining part of a reservation: Slurm creates none that began in the past."""
    if want.period.start >= now:
        return want
    return replace(want, period=Period(now, want.period.end))


def _same(want: SlurmReservation, have: SlurmReservation) -> bool:
    """Return whether nodes and GPUs are the same, and no flag is missing. Slurm may add CPUs, for whole cores.

    The number of licences can be changed, but not whether it is a reservation of licences.
    """
    same_place = want.nodes == have.nodes and dict(want.gpus) == dict(have.gpus) and have.cpus >= want.cpus
    return same_place and want.flags <= have.flags and bool(want.licenses) == bool(have.licenses)


def _change(want: SlurmReservation, have: SlurmReservation, now: int) -> Change | None:
    # A start in the past cannot be changed and does not matter; Slurm accepts no start in the past.
    began = have.period.start <= now and want.period.start <= now
    start = have.period.start if began else max(now, want.period.start)
    moved = abs(start - have.period.start) > TIME_TOLERANCE or abs(want.period.end - have.period.end) > TIME_TOLERANCE
    who = (want.users, want.accounts) != (have.users, have.accounts)
    counted = dict(want.licenses) != dict(have.licenses)
    if not moved and not who and not counted:
        return None
    return Change(
        want.name,
        Period(start, want.period.end) if moved else None,
        want.users if who else frozenset(),
        want.accounts if who else frozenset(),
        want.licenses if counted else {},
    )
