"""Whether a session is idle, when it is warned, and when its time is over. Pure.

A session is idle in a minute if everything that is known of it says so: no kernel busy, no program in the foreground
of a terminal, no run, CPUs below a bound, and each of its GPUs below a bound. What is not known is never idle: a
session whose server says nothing of its kernels, of whose GPUs one has no utilisation (a MIG device, a GPU that the
driver has lost), or that reports nothing, is left alone.

    tail = follow(None, minutes, rule)
    found = decide(rule, tail, clicks=(), warned=(), companions=0, now=now)
    found.state       # "active", "unknown", "idle", "warn" or "due"
    found.deadline    # when it is over, if nothing happens until then
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carme_hub.domain.quotas.idle.rules import Action, IdleRule

from .minutes import MINUTE, Minute

#: Seconds by which the newest minute may be behind: it begins up to two minutes before it is sent, and one retry.
MOST_BEHIND = 240
#: Seconds after the end that a warning promised, after which it counts no more: its session was not ended then, because
#: the hub was away or no rule was in force, and nobody expects the end any more.
WARNING_LASTS = 900


@dataclass(frozen=True, slots=True)
class IdleState:
    """What is decided of a session.

    Attributes:
        state: "active", "unknown", "idle", "warn" (its user is warned now) or "due" (its action is due).
        since: begin of the idle time, 0 = it is not idle. deadline: when the action is due at the earliest.
        warning: seconds before the deadline for which the warning is that is due now; 0 = none.
        because: why it is active or unknown, as a sentence.
    """

    state: str
    since: float = 0.0
    deadline: float = 0.0
    warning: int = 0
    because: str = ""


def minute_is_idle(minute: Minute, rule: IdleRule, *, has_gpus: bool = True) -> tuple[bool | None, str]:
    """Return whether a minute was idle, None if that is not known, and why not. ``has_gpus``: of its session."""
    for number, what in ((minute.kernels, "kernel"), (minute.terminals, "terminal"), (minute.runs, "run")):
        if number:
            return False, f"{number} {what}{'' if number == 1 else 's'} {'was' if number == 1 else 'were'} at work"
    for place, gpu in enumerate(minute.gpus):
        if gpu.utilisation is not None and gpu.utilisation >= rule.gpu_below:
            return False, f"GPU {place} was used at {gpu.utilisation:.0f} %"
    if minute.cpu is not None and minute.cpu >= rule.cpu_below:
        return False, f"its CPUs were used at {minute.cpu:.0f} %"
    if minute.kernels is None or minute.terminals is None or minute.runs is None:
        return None, "its server says nothing of its kernels and terminals"
    if minute.cpu is None:
        return None, "the use of its CPUs is not known"
    if has_gpus and (not minute.gpus or any(gpu.utilisation is None for gpu in minute.gpus)):
        return None, "the use of its GPUs is not known"
    return True, ""


@dataclass(frozen=True, slots=True)
class IdleTail:
    """The end of what is known of a session.

    Attributes:
        since: begin of the idle time that lasts until ``until``; 0 = it was not idle. until: end of the newest minute.
        because: why it was not idle. known: whether that is known; False = it is not known whether it was idle.
    """

    since: float
    until: float
    because: str = ""
    known: bool = True


def follow(
    tail: IdleTail | None, minutes: Iterable[Minute], rule: IdleRule, *, has_gpus: bool = True
) -> IdleTail | None:
    """Return the tail after further minutes; those before its end are left out. None = nothing is known yet.

    Args:
        minutes: of the session's own node, in order. has_gpus: whether the session has some.
    """
    for minute in minutes:
        if tail is not None and minute.at < tail.until - MINUTE / 2:
            continue
        idle, because = minute_is_idle(minute, rule, has_gpus=has_gpus)
        # Nothing is known of the time between two reports that do not meet.
        meets = tail is not None and minute.at - tail.until < MINUTE
        since = tail.since if tail is not None and meets and tail.since else float(minute.at)
        until = float(minute.at + max(minute.seconds, 1))
        tail = IdleTail(since if idle else 0.0, until, because, idle is not None)
    return tail


def decide(
    rule: IdleRule,
    tail: IdleTail | None,
    *,
    clicks: Sequence[float],
    warned: Sequence[tuple[float, int]],
    companions: int,
    now: float,
    watched_since: float = 0.0,
    at_work: Sequence[float] = (),
) -> IdleState:
    """Return what is decided of a session that a rule is for.

    Args:
        clicks: when its user said "still here"; those beyond the rule's number do not count. warned: when its user was
            warned, and of how many seconds before the deadline each was.
        companions: that it has now; a session with one is active.
        watched_since: since when sessions are looked at without a break. While the hub is away nobody can say to be
            there, so after that they have the time of the last warning at least.
        at_work: when its server said that something is at work, which is newer than reports.
    """
    if companions:
        return IdleState("active", because="It has more nodes for its runs.")
    if tail is None or now - tail.until > MOST_BEHIND:
        return IdleState("unknown", because="Nothing was reported in the last minutes.")
    if not tail.since:
        because = f"{tail.because[:1].upper()}{tail.because[1:]}."
        return IdleState("active" if tail.known else "unknown", because=because)
    kept = sorted(clicks)[: rule.still_here]
    since = max([tail.since, *(at for at in (*kept, *at_work) if at <= now)])
    # Warnings of an earlier idle time do not count for this one, nor those whose end has passed without anything.
    ends = rule.action is not Action.TELL
    given = {
        seconds: at
        for at, seconds in sorted(warned)
        if at >= since and not (ends and now > at + seconds + WARNING_LASTS)
    }
    deadline = max(since + rule.after, watched_since + min(rule.warn, default=0))
    for seconds in rule.warn:
        if seconds in given:
            # Whoever was warned late, by a service that was away, still has the time that the warning promised.
            deadline = max(deadline, given[seconds] + seconds)
        elif now >= deadline - seconds:
            return IdleState("warn", since, max(deadline, now + seconds), seconds)
        else:
            return IdleState("idle", since, deadline)
    return IdleState("due" if now >= deadline else "idle", since, deadline)
