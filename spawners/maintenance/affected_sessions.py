"""Sessions in the way of maintenance: which they are, and what their users are offered before it begins.

A session is in the way while its time limit ends after the maintenance of one of its nodes begins. Slurm starts no job
where it would run into that, so a session that is started again, for what is left of its time, is on other nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from carme_hub.booking.maintenance import NOTICE
from carme_hub.booking.messages import listed
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, jobs_past_start
from carme_hub.domain.calendar.slurm_reservations import PREFIX
from carme_hub.domain.cluster.jobs import Job, Snapshot
from carme_hub.domain.sessions.profile import Limit
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.spawners.form.durations import clock, duration
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.form.slots import OUTSIDE
from carme_hub.spawners.form.start_estimate import prospect


@dataclass(frozen=True, slots=True)
class AffectedSession:
    """A running session and the first maintenance that it is in the way of."""

    session: Session
    job: Job
    maintenance: Reservation

    @property
    def nodes(self) -> str:
        """Return the nodes of the session that are maintained, in words."""
        return listed(sorted(self.maintenance.nodes & set(self.job.nodes)))


def notice_period(now: float) -> Period:
    """Return the time in which maintenance begins, or is already, of which people are told now."""
    return Period(int(now), int(now) + NOTICE)


def affected_session(
    session: Session, jobs: Iterable[Job], known: Iterable[Reservation], now: float
) -> AffectedSession | None:
    """Return what a session is in the way of; None for nothing, and where it does not run or is being stopped.

    Args:
        jobs: of this session. known: reservations.
    """
    if session.state is not SessionState.RUNNING or session.is_ending:
        return None
    soon = (each for each in known if each.kind is Kind.MAINTENANCE and each.state in PROMISED)
    windows = sorted((each for each in soon if each.period.overlaps(notice_period(now))), key=lambda each: each.period)
    there = ((job, window) for job in jobs for window in windows if jobs_past_start(window, [job]))
    return next((AffectedSession(session, job, window) for job, window in there), None)


def affected_sessions(
    sessions: Iterable[Session], snapshot: Snapshot | None, known: Iterable[Reservation], now: float
) -> Iterator[AffectedSession]:
    """Yield those of some sessions that are in the way, by the newest look at the queue."""
    there = [*known]
    for session in sessions if snapshot is not None else ():
        jobs = snapshot.named(session.job_name, session.user) if snapshot is not None else ()
        if found := affected_session(session, jobs, there, now):
            yield found


# -- going on elsewhere -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """How a session starts again: with which user options, what they come to, or why it cannot."""

    options: Mapping[str, object]
    request: Request | None
    problem: str = ""


def restart_options(offer: Offer, options: Mapping[str, object], found: AffectedSession, now: float) -> RestartOptions:
    """Return how a session starts again elsewhere: with the same choice, for what is left of its time.

    Where the profile does not give just that, it is the next longer time that it does, or what was asked at first. Out
    of a booking it goes on outside: the booking's own GPUs are those that are maintained.

    Args:
        options: the user options of the session's start.
    """
    asked = {"profile": found.session.request.profile, **options}
    if found.session.request.reservation.startswith(PREFIX):
        asked["reservation"] = OUTSIDE
    profile = next((each for each in offer.profiles if each.slug == asked["profile"]), None)
    times = _allowed(profile.time_minutes, minutes_left(found, now)) if profile is not None else ()
    problem = ""
    for chosen in (*({**asked, "time_minutes": minutes} for minutes in times), asked):
        request, problems = offer.examine(chosen)
        if request is not None:
            return RestartOptions(chosen, request)
        problem = " ".join(each.message for each in problems)
    return RestartOptions(asked, None, problem)


def minutes_left(found: AffectedSession, now: float) -> int:
    """Return what is left of a session's time, in minutes; of one without a limit what it asked for."""
    if not found.job.end:
        return found.session.request.time_limit
    return max(1, int(found.job.end - now) // 60)


def _allowed(limit: Limit, minutes: int) -> tuple[int, ...]:
    """Return the shortest time of a profile that is at least so long; none where it has none."""
    if limit.choices:
        return tuple(sorted(choice for choice in limit.choices if choice >= minutes)[:1])
    return (max(minutes, limit.min),) if max(minutes, limit.min) <= limit.max else ()


def restart_sentence(offer: Offer, request: Request, now: float, patience: float) -> str:
    """Say when it would start again: at once, later, too late, or as nobody knows.

    Args:
        patience: seconds that a start waits in the queue at most.
    """
    profile = next(each for each in offer.profiles if each.slug == request.profile)
    look = offer.bookings
    seen = prospect(offer.cluster, profile, request, now, virtual=offer.virtual, suggest=False, bookings=look)
    expected = seen["expected"]
    if seen["state"] == "unknown":
        return "Whether another node has room for it is not known now: Slurm does not answer."
    if seen["state"] == "now":
        return "Another node has room for it, so it starts again at once."
    waits = f"A start waits {duration(max(1, round(patience / 60)))} at most"
    none, fails = "No other node has room for it now", "then it fails, and you start again by the form later."
    if seen["state"] == "never" or not isinstance(expected, int):
        return f"{none}, and when one has is not known. {waits}; {fails}"
    if expected <= now:
        return f"Others are in line for the same, so it may wait a little before it starts again. {waits}."
    when = _at(clock(expected, now))
    if expected > now + patience:
        return f"{none}: by what is known, one has {when}. {waits}; {fails}"
    return f"{none}: it waits in the queue, and is expected to start again {when}."


def _at(said: str) -> str:
    return f"at {said}" if said[:1].isdigit() else said


# -- what is offered --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What a user is offered for a session that is in the way.

    Attributes:
        session: its UUID. server: the server's name, "" for the default one. begins: when and of what.
        ends, ends_iso: until when the session may run, for people and machines; "" where it has no limit.
        rest: the time for which it starts again. again: when that is. problem: why it cannot.
        refund: what stopping it brings, as a sentence. refunded: whether GPU time comes back for it.
    """

    session: str
    server: str
    begins: str
    ends: str
    ends_iso: str
    duration: str
    restart: str
    problem: str
    refund: str
    refunded: bool


def begin_sentence(found: AffectedSession, now: float) -> str:
    """Say which maintenance it is and when it begins."""
    one = found.maintenance
    when = "has begun" if one.period.start <= now else f"begins {_at(clock(one.period.start, now))}"
    return f"Maintenance of {found.nodes} {when}: {one.title}."


def restart_duration(found: RestartOptions) -> str:
    """Return for how long it starts again."""
    return duration(found.request.time_limit) if found.request is not None else ""
