"""Start sessions inside a booking: which bookings are usable now, which sessions fit, and the changed request. Pure.

A job names all Slurm reservations in which it may start, and its time limit ends before they do: Slurm starts no job
whose time limit is after the reservation's end, and ends the jobs that still run then. The start form calls this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request

from .reservations import PROMISED, Kind, Reservation

#: Seconds before the start of a booking from which sessions may be started in it; Slurm lets their jobs wait.
EARLY_SECONDS = 60
#: Seconds by which a session ends before its booking, since some time passes until its job runs.
GRACE_SECONDS = 60
#: Longest value of ``--reservation`` in characters (slurmctld, job_mgr.c: ``_test_job_desc_fields``).
MAX_NAMES_LENGTH = 1024

_RUNNING = (Phase.ACTIVE, Phase.ENDING)


def minutes_left(reservation: Reservation, now: float) -> int:
    """Return the longest time limit in minutes of a session that starts in the booking now; 0 if it is too late."""
    begin = max(now, reservation.period.start)
    return max(0, int(reservation.period.end - GRACE_SECONDS - begin) // 60)


def is_now(reservation: Reservation, now: float) -> bool:
    """Return whether a session can be started in the booking now."""
    promised = reservation.kind is Kind.BOOKING and reservation.state in PROMISED
    return promised and reservation.period.start - EARLY_SECONDS <= now and minutes_left(reservation, now) > 0


def usable_now(
    known: Iterable[Reservation], user: str, groups: Collection[str], accounts: Collection[str], now: float
) -> tuple[Reservation, ...]:
    """Return the bookings in which this user may start a session now, sorted by their end."""
    found = (each for each in known if is_now(each, now) and each.concerns(user, accounts, groups))
    return tuple(sorted(found, key=lambda each: (each.period.end, each.id)))


def upcoming(
    known: Iterable[Reservation],
    user: str,
    groups: Collection[str],
    accounts: Collection[str],
    now: float,
    within: float = 86_400,
) -> tuple[Reservation, ...]:
    """Return this user's bookings that begin within ``within`` seconds but are not usable yet, sorted by start."""
    found = (
        each
        for each in known
        if each.kind is Kind.BOOKING
        and each.state in PROMISED
        and now + EARLY_SECONDS < each.period.start <= now + within
        and each.concerns(user, accounts, groups)
    )
    return tuple(sorted(found, key=lambda each: (each.period.start, each.id)))


def seat_gpus(reservation: Reservation) -> Gpus:
    """Return the GPUs that one session may have: those of a seat, or of its largest node."""
    need = reservation.need
    return Gpus(need.type, need.gpus or max((place.count for place in reservation.places), default=0))


def seat_cpus(reservation: Reservation) -> int:
    """Return the CPUs of a seat, 0 if unknown."""
    return max((place.cpus // max(1, place.seats) for place in reservation.places), default=0)


def mismatch(reservation: Reservation, request: Request) -> str:
    """Return why a session does not fit in, as the end of a sentence that begins with the title; "" if it fits."""
    room, cpus = seat_gpus(reservation), seat_cpus(reservation)
    if reservation.profile and request.profile != reservation.profile:
        return f"is for the profile {reservation.profile}"
    if request.gpus.type != room.type:
        return f"has {room.type}"
    if request.gpus.count > room.count:
        return f"gives {room} to a session"
    if request.account not in ("", reservation.account):
        return f"is charged to the account {reservation.account}"
    if cpus and request.cpus > cpus:
        return f"gives {cpus} CPU{'' if cpus == 1 else 's'} to a session"
    return ""


def has_room(reservation: Reservation, gpus: int, jobs: Collection[Job]) -> bool:
    """Return whether a seat of ``gpus`` GPUs is free and no job waits for it."""
    names = set(reservation.names())
    waiting = sum(job.phase is Phase.WAITING and not names.isdisjoint(job.reservations) for job in jobs)
    return sum(free // max(1, gpus) for _, free in _free(reservation, jobs)) > waiting


def names_for(reservation: Reservation, gpus: int, jobs: Collection[Job]) -> str:
    """Return the value of ``--reservation``: the emptiest reservations first, as many names as Slurm accepts."""
    best: dict[str, int] = {}
    for name, free in _free(reservation, jobs):
        best[name] = max(best.get(name, 0), free // max(1, gpus))
    order = sorted(best, key=lambda name: -best[name])
    most = (MAX_NAMES_LENGTH + 1) // (max(map(len, order), default=0) + 1)
    return ",".join(order[:most])


def placed_in(request: Request, reservation: Reservation, jobs: Collection[Job], now: float) -> Request:
    """Return the request inside a booking: with its reservations and account, and a time limit before its end."""
    return replace(
        request,
        account=reservation.account,
        reservation=names_for(reservation, request.gpus.count, jobs),
        time_limit=min(request.time_limit, minutes_left(reservation, now)),
    )


def reservation_named(known: Iterable[Reservation], names: str) -> Reservation | None:
    """Return the booking that a job's ``--reservation`` names; None for no or manual reservations."""
    wanted = set(names.split(",")) - {""}
    return next((each for each in known if wanted.intersection(each.names())), None) if wanted else None


def runs_inside(job: Job, names: Collection[str]) -> bool:
    """Return whether a job runs in one of these Slurm reservations."""
    return job.phase in _RUNNING and any(name in names for name in job.reservations)


def _free(reservation: Reservation, jobs: Collection[Job]) -> list[tuple[str, int]]:
    """Return the name of the Slurm reservation of each node, and its GPUs that no job uses.

    A reservation by licences is on any nodes: it has one name with all its GPUs.
    """
    if reservation.license:
        names = set(reservation.names())
        running = sum(job.gpus.count for job in jobs if runs_inside(job, names))
        return [(each.name, max(0, reservation.own_type_gpus - running)) for each in reservation.slurm_reservations()]
    places = {place.node: place.count for place in reservation.places}
    names = set(reservation.names())
    # A running job still names all reservations in which it might have started; its node shows the actual one.
    for job in jobs:
        if runs_inside(job, names):
            for node in places.keys() & set(job.nodes):
                places[node] -= job.gpus.count // len(job.nodes)
    parts = [(each.name, node) for each in reservation.slurm_reservations() for node in sorted(each.nodes)]
    return [(name, max(0, places[node])) for name, node in parts]
