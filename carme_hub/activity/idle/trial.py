"""Tries a policy's rules on idle sessions on the sessions of a time, from what is kept of their minutes.

Evidence is kept as long as hours are (``CarmeActivity.keep_hours``); a session of which none is kept counts as one of
which nothing is known. Groups, roles and accounts are today's. Synchronous, for a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from carme_hub.domain.activity.replay import Outcome, replay
from carme_hub.domain.quotas.idle.rules import Action, Subject
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import Session
from carme_hub.store.activity import ActivityStore
from carme_hub.store.sessions import SessionStore

#: Sessions whose evidence is read at once.
AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Tried:
    """One session and what would have become of it."""

    session: Session
    outcome: Outcome

    @property
    def given_back(self) -> int:
        """GPU-seconds."""
        return self.outcome.given_back * self.session.request.gpus.count

    @property
    def is_ended(self) -> bool:
        """Whether it would have been ended."""
        return self.outcome.action in (Action.STOP, Action.RELEASE_GPUS)


@dataclass(frozen=True, slots=True)
class TrialMonth:
    """The sums of a month, such as "2026-11": sessions that would have been ended, GPU-seconds, false alarms."""

    month: str
    ended: int = 0
    gpu_seconds: int = 0
    false_alarms: int = 0


@dataclass(frozen=True, slots=True)
class IdleTrial:
    """What a policy would have done.

    Attributes:
        tried: those to which something would have happened, the ones that give back most at first.
        sessions: that ran. unmeasured: of them, those of which nothing is kept.
        minutes, unknown: that were reported, and of which it is not known whether they were idle.
    """

    tried: tuple[Tried, ...] = ()
    months: tuple[TrialMonth, ...] = ()
    sessions: int = 0
    unmeasured: int = 0
    minutes: int = 0
    unknown: int = 0


def try_idle_rules(
    sessions: SessionStore,
    activity: ActivityStore,
    cluster: str,
    policy: Policy,
    people: Mapping[str, Person],
    since: float,
    until: float,
) -> IdleTrial:
    """Return what a policy would have done to the sessions that ran in a time.

    Raises:
        StoreError: the database fails.
    """
    every = sessions.ran_between(cluster, since, until)
    beside: dict[str, list[tuple[float, float]]] = {}
    for each in every:
        if each.parent and not each.request.batch:
            beside.setdefault(each.parent, []).append((each.started, each.ended or until))
    own = [each for each in every if not each.parent]
    outcomes = []
    for first in range(0, len(own), AT_ONCE):
        some = own[first : first + AT_ONCE]
        kept = activity.evidence([each.id for each in some], min(each.created for each in some))
        for each in some:
            minutes = kept.get(each.id, {}).get(each.node, [])
            ended = min(each.ended or until, until)
            outcome = replay(
                policy.idle,
                subject_of(each, lambda name: people.get(name, Person(name))),
                [minute for minute in minutes if minute.at < until],
                zone=policy.zone,
                ended=ended,
                companions=beside.get(each.id, ()),
            )
            outcomes.append(Tried(each, outcome))
    return _sums(outcomes, policy.zone, since)


def subject_of(session: Session, person: Callable[[str], Person]) -> Subject:
    """Return a session as rules look at it."""
    whose, request = person(session.user), session.request
    return Subject(
        user=session.user,
        account=request.account,
        groups=whose.groups,
        roles=whose.roles,
        profile=request.profile,
        has_gpus=bool(request.gpus),
        booked=bool(request.reservation),
    )


def _sums(every: Sequence[Tried], zone: str, since: float) -> IdleTrial:
    # What would have become of a session before the time is no part of the trial.
    met = [each for each in every if each.outcome.action is not None and each.outcome.at >= since]
    return IdleTrial(
        tried=tuple(sorted(met, key=lambda each: (-each.given_back, each.outcome.at))),
        months=tuple(_months([each for each in met if each.is_ended], zone)),
        sessions=len(every),
        unmeasured=sum(not each.outcome.minutes for each in every),
        minutes=sum(each.outcome.minutes for each in every),
        unknown=sum(each.outcome.unknown for each in every),
    )


def _months(ended: Iterable[Tried], zone: str) -> list[TrialMonth]:
    found: dict[str, list[Tried]] = {}
    for each in ended:
        found.setdefault(f"{datetime.fromtimestamp(each.outcome.at, ZoneInfo(zone)):%Y-%m}", []).append(each)
    return [
        TrialMonth(
            name,
            len(some),
            sum(each.given_back for each in some),
            sum(each.outcome.is_false_alarm for each in some),
        )
        for name, some in sorted(found.items())
    ]
