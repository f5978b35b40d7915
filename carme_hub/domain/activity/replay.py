"""What rules on idle sessions would have done to a session that has run. Pure.

The same decisions as in the hub (``idle.decide``), at each minute of what was reported, with nobody who says "still
here": so the true numbers are lower. A session is stopped once, and what its user would have started instead is not
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carme_hub.domain.quotas.idle.rules import Action, IdleRule, Subject

from .idle import IdleTail, decide, follow, minute_is_idle
from .minutes import MINUTE, Minute

#: Seconds after the end of a minute at which the hub knows it, on average.
KNOWN_AFTER = 60
#: Who is at work again within so many seconds after the stop did not want it.
FALSE_ALARM_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would have become of a session.

    Attributes:
        action: what the rule that counted does; None = nothing would have happened.
        idle_since, at: begin of the idle time, and when the action would have been due; 0 = never.
        back: when it was at work again after that; 0 = never.
        worked: seconds for which it was at work after that: what its user would have had to do in another session.
        given_back: seconds from then until it was at work again, or until its end, in which its GPUs were free.
        minutes, unknown: how many were reported, and in how many of them it is not known whether it was idle.
    """

    action: Action | None = None
    idle_since: float = 0.0
    at: float = 0.0
    back: float = 0.0
    worked: int = 0
    given_back: int = 0
    minutes: int = 0
    unknown: int = 0

    @property
    def is_false_alarm(self) -> bool:
        """Whether it was at work again soon after it would have been stopped."""
        return bool(self.back) and self.back - self.at <= FALSE_ALARM_SECONDS


def replay(
    rules: Sequence[IdleRule],
    subject: Subject,
    minutes: Iterable[Minute],
    *,
    zone: str,
    ended: float,
    companions: Sequence[tuple[float, float]] = (),
) -> Outcome:
    """Return what the rules would have done to a session.

    Args:
        minutes: of its own node, in order. ended: when it ended, or now.
        companions: begin and end of each of its companions.
    """
    fitting = [rule for rule in rules if subject.fits(rule)]
    tails: list[IdleTail | None] = [None] * len(fitting)
    warned: list[tuple[float, int]] = []
    counted: list[Minute] = []
    due: Outcome | None = None
    rule = None
    for minute in minutes:
        counted.append(minute)
        if due is not None:
            continue
        tails = [
            follow(tail, (minute,), each, has_gpus=subject.has_gpus) if each.action is not Action.NONE else None
            for tail, each in zip(tails, fitting, strict=True)
        ]
        now = minute.at + minute.seconds + KNOWN_AFTER
        place = next((number for number, each in enumerate(fitting) if each.in_force(now, zone)), None)
        tail = tails[place] if place is not None else None
        if place is None or tail is None or not tail.since:
            continue
        rule = fitting[place]
        if now < tail.since + rule.after - max(rule.warn, default=0):
            continue
        beside = sum(begin <= now <= end for begin, end in companions)
        state = decide(rule, tail, clicks=(), warned=warned, companions=beside, now=now)
        if state.state == "warn":
            warned.append((now, state.warning))
        elif state.state == "due":
            due = Outcome(rule.action, state.since, now)
    states = [(each, minute_is_idle(each, rule or _ANY, has_gpus=subject.has_gpus)[0]) for each in counted]
    return _counted(due or Outcome(), states, ended)


_ANY = IdleRule(Action.STOP)


def _counted(due: Outcome, states: Sequence[tuple[Minute, bool | None]], ended: float) -> Outcome:
    """Return an outcome with its sums, of minutes and whether each was idle."""
    after = [minute for minute, idle in states if idle is False and due.at and minute.at + MINUTE > due.at]
    back = float(max(after[0].at, due.at)) if after else 0.0
    return Outcome(
        action=due.action,
        idle_since=due.idle_since,
        at=due.at,
        back=back,
        worked=sum(minute.seconds for minute in after),
        given_back=max(0, int((back or ended) - due.at)) if due.at and due.action is not Action.TELL else 0,
        minutes=len(states),
        unknown=sum(idle is None for _, idle in states),
    )
