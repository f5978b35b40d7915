"""Sessions that maintenance affects: finds them, and describes the alternatives of their users before it begins.

Maintenance affects a session if the session's time limit ends after the maintenance of one of its nodes begins. Slurm
starts no job that would overlap it, so a session that starts again, for the rest of its time, runs on other nodes.
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
    """A running session and the first maintenance that affects it."""

    session: Session
    job: Job
    maintenance: Reservation

    @property
    def nodes(self) -> str:
        """The session's nodes that are maintained, as text."""
        return listed(sorted(self.maintenance.nodes & set(self.job.nodes)))


def notice_period(now: float) -> Period:
    """Return the period for whose maintenance users get a notice now."""
    return Period(int(now), int(now) + NOTICE)


def affected_session(
    session: Session, jobs: Iterable[Job], known: Iterable[Reservation], now: float
) -> AffectedSession | None:
    """Return the maintenance that affects a session; None for none, and if it does not run or is being stopped.

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
    """Yield the sessions that maintenance affects, by the newest snapshot of the queue."""
    there = [*known]
    for session in sessions if snapshot is not None else ():
        jobs = snapshot.named(session.job_name, session.user) if snapshot is not None else ()
        if found := affected_session(session, jobs, there, now):
            yield found


# -- starting again on other nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """How a session starts again: the user options, their request, or why it cannot."""

    options: Mapping[str, object]
    request: Request | None
    problem: str = ""


def restart_options(offer: Offer, options: Mapping[str, object], found: AffectedSession, now: float) -> RestartOptions:
    """Return how a session starts again on other nodes: with the same options, for the rest of its time.

    If the profile does not allow just that time, it is the next longer allowed time, or the first request's. A session
    in a booking starts again outside of it, since the maintenance is on the booking's own GPUs.

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
    """Return the minutes left of a session's time; without a time limit, those that it requested."""
    if not found.job.end:
        return found.session.request.time_limit
    return max(1, int(found.job.end - now) // 60)


def _allowed(limit: Limit, minutes: int) -> tuple[int, ...]:
    """Return the profile's shortest time that is at least so long, in a tuple; empty if there is none."""
    if limit.choices:
        return tuple(sorted(choice for choice in limit.choices if choice >= minutes)[:1])
    return (max(minutes, limit.min),) if max(minutes, limit.min) <= limit.max else ()


def restart_sentence(offer: Offer, request: Request, now: float, max_wait: float) -> str:
    """Return a sentence on when it would start again: at once, later, too late, or unknown.

    Args:
        max_wait: the longest time that a start waits in the queue, in seconds.
    """
    profile = next(each for each in offer.profiles if each.slug == request.profile)
    bookings = offer.bookings
    seen = prospect(offer.cluster, profile, request, now, virtual=offer.virtual, suggest=False, bookings=bookings)
    expected = seen["expected"]
    if seen["state"] == "unknown":
        return "It is not known now whether another node has room for it: Slurm does not answer."
    if seen["state"] == "now":
        return "Another node has room for it, so it starts again at once."
    waits = f"A start waits {duration(max(1, round(max_wait / 60)))} at most"
    none, fails = "No other node has room for it now", "then it fails, and you start again by the form later."
    if seen["state"] == "never" or not isinstance(expected, int):
        return f"{none}, and when one has is not known. {waits}; {fails}"
    if expected <= now:
        return f"Other jobs wait for the same GPUs, so it may wait a little before it starts again. {waits}."
    when = _at(clock(expected, now))
    if expected > now + max_wait:
        return f"{none}: by what is known, one has {when}. {waits}; {fails}"
    return f"{none}: it waits in the queue, and is expected to start again {when}."


def _at(time: str) -> str:
    return f"at {time}" if time[:1].isdigit() else time


# -- alternatives -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives for a session that maintenance affects, as the home page shows them.

    Attributes:
        session: its UUID. server: the server's name, "" for the default one. begins: a sentence on the maintenance.
        ends, ends_iso: the end of the session's time, for people and machines; "" without a time limit.
        duration: for how long it starts again. restart: a sentence on when. problem: why it cannot start again.
        refund: a sentence on GPU time if it is stopped. refunded: whether its use is refunded.
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
    """Return a sentence on the maintenance and its begin."""
    one = found.maintenance
    when = "has begun" if one.period.start <= now else f"begins {_at(clock(one.period.start, now))}"
    return f"Maintenance of {found.nodes} {when}: {one.title}."


def restart_duration(found: RestartOptions) -> str:
    """Return for how long the session starts again, as text."""
    return duration(found.request.time_limit) if found.request is not None else ""
