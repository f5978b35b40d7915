"""Slurm's reservations against those that were booked: what is to be created, changed and deleted. Pure.

A booking has one Slurm reservation for each node that its seats are on (a job names all of them, and starts in one
that has room), or one for all its whole nodes. Each bears our id in its name. What Slurm cannot change is made anew:
one of single GPUs keeps its nodes and GPUs (seen on 24.11: "Core-based reservation can not be updated"), and one that
has begun keeps its start. Reservations that do not bear an id of ours are never touched; those made by hand take
capacity.

Where Slurm is to count GPUs by licences, a booking is one reservation of licences and of no nodes. All of one can be
changed, also while jobs run in it (seen on 22.05 and 24.11), and it is never made anew.

One that was given back while a job still runs in it can be neither deleted nor made shorter: Slurm refuses both
("Requested reservation is in use"). Its deletion is planned again at each look, until that job has ended.

Of Slurm's flags (scontrol(1)) a booking has none. PURGE_COMP deletes a reservation that is idle for a while: who pauses
in his own time would lose it, and when it is idle for too long is for us to say (no-show), with the refund. FLEX lets
its jobs run on after its end and on other nodes, which are somebody else's then. MAGNETIC pulls jobs into it that did
not ask for it, so that one seat's owner takes another's. Maintenance has MAINT, which may lie over bookings, and
IGNORE_JOBS, since those that run there now are told, and not asked. One of licences has ANY_NODES, without which Slurm
makes none that names no node. Slurm adds flags by itself (SPEC_NODES).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from .periods import Period

PREFIX = "carme-"
#: Seconds by which times may differ; Slurm keeps them to the second.
TIME_TOLERANCE = 1
#: Seconds before its start from which a reservation does not make way for another one any more.
_MIN_LEAD = 120
#: Flags that mean that nobody's ordinary jobs run there.
MAINTENANCE_FLAGS = frozenset({"MAINT"})
#: Flags of our own maintenance windows: they may lie over bookings and over jobs that run.
OWN_MAINTENANCE_FLAGS = MAINTENANCE_FLAGS | {"IGNORE_JOBS"}
#: The flag of what is of licences alone; LICENSE_ONLY is another name for it.
LICENSE_ONLY_FLAGS = frozenset({"ANY_NODES"})


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """A reservation as Slurm shows it, or as it is to be.

    Attributes:
        gpus: by type; {} = whole nodes. cpus: of all its nodes together, 0 = whatever the nodes have.
        licenses: how many of each, by name.
        users, accounts: who may use it; where both are given, a job must match both (scontrol(1)).
        flags: as Slurm prints them, in upper case, without values.
        state: ``ACTIVE`` or ``INACTIVE``; "" for one that is to be.
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
        """Whether it bears our prefix."""
        return self.name.startswith(PREFIX)

    @property
    def maintenance(self) -> bool:
        """Whether it is a maintenance window."""
        return bool(self.flags & MAINTENANCE_FLAGS)

    @property
    def stem(self) -> str:
        """Return what the names of all reservations of one booking have in common."""
        return stem_of(self.name)


def stem_of(name: str) -> str:
    """Return a name without the number at its end."""
    return name.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Create:
    """Make this one."""

    wanted: SlurmReservation


@dataclass(frozen=True, slots=True)
class Change:
    """Give the one of this name these: None and empty are left as they are. All but the period are given whole."""

    name: str
    period: Period | None = None
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    licenses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    """End the one of this name. Slurm refuses while a job runs in it."""

    name: str


Step = Create | Change | Delete


def plan(
    wanted: Iterable[SlurmReservation], existing: Iterable[SlurmReservation], *, obsolete: Collection[str], now: int
) -> tuple[Step, ...]:
    """Return the steps that make Slurm's reservations those that are wanted: deletions first, since they make room.

    Args:
        there: all of Slurm's. gone: names that we know and that are not wanted any more; other names are left alone.
        now: epoch seconds; what is over is neither made nor changed.
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
    """Return what of licences is to be deleted, so that Slurm takes what it has refused, and then that again.

    Slurm adds up all reservations of a licence that a new one overlaps, also those of which no two are at the same
    moment (seen on 22.05 and 24.11). In the order of their starts none is refused without need: what a new one overlaps
    then is all there at its start. So what starts later is deleted, and the next plan makes it in that order.

    Args:
        there: all of Slurm's. named: those that jobs name, which stay: Slurm would hold these jobs.
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
    """Return what is left of it: Slurm makes none that began in the past."""
    if want.period.start >= now:
        return want
    return replace(want, period=Period(now, want.period.end))


def _same(want: SlurmReservation, have: SlurmReservation) -> bool:
    """Return whether nodes and GPUs are the same, and no flag is lacking. Slurm may add CPUs, for whole cores.

    How many licences they are can be changed, but not whether they are of licences.
    """
    same_place = want.nodes == have.nodes and dict(want.gpus) == dict(have.gpus) and have.cpus >= want.cpus
    return same_place and want.flags <= have.flags and bool(want.licenses) == bool(have.licenses)


def _change(want: SlurmReservation, have: SlurmReservation, now: int) -> Change | None:
    # When it began is past changing, and matters to nobody; Slurm lets none begin in the past.
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
