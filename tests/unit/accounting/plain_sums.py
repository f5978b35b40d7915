"""The ledger and its rules in plain sums: lists of sessions, jobs and gifts that are added up anew at each question.

Nothing of the product is imported here. A window of the calendar is what has today's date, week or month: a second is
asked for its own, and no border is worked out. Amounts are milli-GPU-seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor
from typing import Any

from plain_facts import (
    DAY,
    GRACE,
    QUARTER,
    RECHECK_PERIOD,
    UNWRITTEN_TIMEOUT,
    Gift,
    Held,
    Job,
    Moment,
    Use,
    Wish,
    page_of,
)

_REFUNDED = {"NODE_FAIL", "PREEMPTED"}


@dataclass
class PlainSums:
    rules: list[Any]
    zone: str
    members: dict[str, frozenset[str]]
    prices: dict[str, int]
    now: float
    held: dict[str, Held] = field(default_factory=dict)
    uses: dict[tuple[int, int], Use] = field(default_factory=dict)
    window_moments: list[Moment] = field(default_factory=list)
    gifts: list[Gift] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)  # from credits that expired
    running: list[Job] = field(default_factory=list)  # from outside, as last seen
    doubts: dict[tuple[str, Any], int] = field(default_factory=dict)  # what is undecided, with its rate
    decided: set[tuple[str, Any]] = field(default_factory=set)

    @property
    def second(self) -> int:
        return floor(self.now)

    # -- what the rules see -------------------------------------------------------------------------------------------

    def seconds(self, rule: Any, first: int, last: int) -> int:
        """Return how many of the seconds from first to before last lie in the rule's window as it is now."""
        match rule.window.value:
            case "total":
                return last - first
            case "rolling":
                return max(0, last - max(first, self.second - rule.days * DAY))
            case "term":
                return max(0, min(last, int(rule.end)) - max(first, int(rule.start)))
            case window:

                def page(second: int) -> int:
                    return page_of(window, second, self.zone)

                today = page(self.second)
                return bisect_right(range(first, last), today, key=page) - bisect_left(
                    range(first, last), today, key=page
                )

    def in_force(self, rule: Any) -> bool:
        return rule.window.value != "term" or rule.start <= self.now < rule.end

    def subjects(self, rule: Any, person: Any, account: str) -> list[tuple[str, str, frozenset[str] | None]]:
        """Return whose use a rule counts when this person asks: (subject, account, users)."""
        who = rule.who.value
        if who == "account":
            return [(account, account, None)] if rule.name in ("*", account) else []
        if who == "user":
            return [(person.user, "", frozenset({person.user}))] if rule.name in ("*", person.user) else []
        names = sorted(name for name in (person.groups if who == "group" else person.roles) if rule.name in ("*", name))
        if rule.together:
            return [(name, "", self.members.get(name, frozenset()) | {person.user}) for name in names]
        return [(person.user, "", frozenset({person.user}))] if names else []

    def used(self, rule: Any, account: str, users: frozenset[str] | None) -> int:
        """Return what these have used in the rule's window, with what runs outside."""
        total = 0
        for use in self.uses.values():
            if not use.refunded and _is_of(use, account, users):
                total += use.rate * self.seconds(rule, use.start, use.end)
        for moment in self.window_moments:
            if _is_of(moment, account, users):
                total += moment.amount * self.seconds(rule, moment.at - 1, moment.at)
        for job in self.outside(account, users):
            total += job.gpus * self.prices[job.type] * self.seconds(rule, job.start, self.second)
        return total

    def outside(self, account: str, users: frozenset[str] | None) -> list[Job]:
        return [job for job in self.running if job.key not in self.uses and _is_of(job, account, users)]

    def open(self, account: str, users: frozenset[str] | None) -> list[Held]:
        return [each for each in self.held.values() if each.is_open and _is_of(each, account, users)]

    def broken(self, wish: Wish) -> set[tuple[str, str]]:
        """Return (rule, reason) of all that forbids it."""
        return _against(self.limits(wish), wish)

    def limits(self, wish: Wish) -> list[tuple[str, str, int, int]]:
        """Return (rule, reason, limit, taken) of every hard limit on who asks."""
        found: list[tuple[str, str, int, int]] = []
        for rule in self.rules:
            if not self.in_force(rule):
                continue
            for _, account, users in self.subjects(rule, wish.user, wish.account):
                ours = self.open(account, users)
                if rule.gpu_time is not None and not rule.soft:
                    taken = self.used(rule, account, users) + sum(each.amount for each in ours)
                    found.append((rule.id, "gpu-time", rule.gpu_time, taken))
                if rule.concurrent_gpus is not None:
                    gpus = sum(each.gpus for each in ours) + sum(job.gpus for job in self.outside(account, users))
                    found.append((rule.id, "concurrent-gpus", rule.concurrent_gpus, gpus))
                if rule.session_gpus is not None:
                    found.append((rule.id, "session-gpus", rule.session_gpus, 0))
                if rule.sessions is not None:
                    found.append((rule.id, "sessions", rule.sessions, len(ours)))
                if rule.sessions_per_day is not None:
                    starts = [each for each in self.held.values() if _is_of(each, account, users)]
                    lately = sum(self.now - each.at < DAY for each in starts)
                    found.append((rule.id, "sessions-per-day", rule.sessions_per_day, lately))
                if rule.time_limit is not None:
                    found.append((rule.id, "time-limit", rule.time_limit, wish.held))
                if rule.gpu_types is not None:
                    found.append((rule.id, "gpu-types", 0 if wish.type not in rule.gpu_types else 99, 0))
                if rule.needs_grant:
                    found.append((rule.id, "needs-grant", self.left(wish.account), 0))
                if rule.may_extend is False:
                    found.append((rule.id, "may-extend", 0, 0))
        return found

    def largest(self, wish: Wish) -> Wish | None:
        """Try everything: no more GPUs, no more quarters of an hour; the most GPUs × time, then the most GPUs."""
        counts = [wish.gpus] if wish.held or not wish.gpus else range(1, wish.gpus + 1)
        times = {*range(QUARTER, wish.seconds, QUARTER), wish.seconds}
        limits = self.limits(wish)
        every = (wish._replace(gpus=gpus, seconds=seconds) for gpus in counts for seconds in times)
        granted = [one for one in every if not _against(limits, one)]
        return max(granted, key=lambda one: (one.gpus * one.seconds, one.gpus, one.seconds), default=None)

    def soft_qos(self, wish: Wish) -> str:
        """Return the QOS of the first soft limit that this goes over."""
        for rule in self.rules:
            if rule.gpu_time is None or not rule.soft or not self.in_force(rule) or not wish.cost:
                continue
            for _, account, users in self.subjects(rule, wish.user, wish.account):
                held = sum(each.amount for each in self.open(account, users))
                if self.used(rule, account, users) + held + wish.cost > rule.gpu_time:
                    return str(rule.soft_qos)
        return ""

    # -- balances -----------------------------------------------------------------------------------------------------

    def balance(self, account: str) -> tuple[int, int, int]:
        """Return what was granted, used and is held, as the ledger has it: without what runs outside."""
        given = sum(gift.amount for gift in self.gifts if gift.account == account)
        gone = sum(self.taken.get(gift.key, 0) for gift in self.gifts if gift.account == account)
        charged = (use for use in self.uses.values() if use.account == account and not use.refunded)
        used = sum(use.rate * (use.end - use.start) for use in charged)
        used += sum(moment.amount for moment in self.window_moments if moment.account == account)
        return given - gone, used, sum(each.amount for each in self.open(account, None))

    def left(self, account: str) -> int:
        """Return what may be held: the balance less what jobs from outside have used up to now."""
        given, used, held = self.balance(account)
        jobs = self.outside(account, None)
        return given - used - held - sum(job.gpus * self.prices[job.type] * (self.second - job.start) for job in jobs)

    def credits(self, account: str) -> dict[str, int]:
        """Return what is left of each credit, at its expiry or now: use is paid by what expires first.

        Debts are paid by what comes next. What is moved away is taken from what lasts, as long as there is any.
        """
        events: list[tuple[int, int, Any]] = [(floor(g.at), 0, g) for g in self.gifts if g.account == account]
        spent: dict[int, int] = {}  # what was used less what of it was given back, by when it was paid
        for use in self.uses.values():
            if use.account == account and not use.refunded:
                at = self._paid_at(use.session, use.start)
                spent[at] = spent.get(at, 0) + use.rate * (use.end - use.start)
        for one in self.window_moments:
            if one.account == account:
                at = self._paid_at(one.session, one.at)
                spent[at] = spent.get(at, 0) + one.amount
        events += [(at, 1, amount) for at, amount in spent.items()]
        events += [(floor(each.at), 1, each.amount) for each in self.open(account, None)]
        purse: dict[str, int] = {}
        ends: dict[str, int] = {}
        lasting = 0
        for at, _, what in sorted(events, key=lambda event: event[:2]):
            alive = sorted((key for key in purse if ends[key] > at), key=lambda key: (ends[key], key))
            if isinstance(what, Gift) and what.amount > 0:
                debt = min(what.amount, max(0, -lasting))
                lasting += debt if what.expires else what.amount
                if what.expires:
                    purse[what.key], ends[what.key] = what.amount - debt, what.expires
                continue
            owed = -what.amount if isinstance(what, Gift) else what
            if isinstance(what, Gift) and what.moved:
                first = max(0, min(owed, lasting))
                lasting, owed = lasting - first, owed - first
            for key in alive:
                part = max(0, min(owed, purse[key]))
                purse[key], owed = purse[key] - part, owed - part
            lasting -= owed
        return purse

    def _paid_at(self, session: str, began: int) -> int:
        return floor(self.held[session].at) if session else began

    def expire(self, accounts: Iterable[str]) -> None:
        """Take back what is left of credits whose time has come, and put right what changed since."""
        for account in accounts:
            over = [g for g in self.gifts if g.account == account and 0 < g.expires <= self.now]
            due = [g for g in over if g.expires > self.now - RECHECK_PERIOD or g.key not in self.taken]
            if due:
                left = self.credits(account)
                self.taken.update({gift.key: left[gift.key] for gift in due})

    def movable(self, account: str) -> int:
        ends = {gift.key: gift.expires for gift in self.gifts}
        stays = sum(rest for key, rest in self.credits(account).items() if ends[key] > self.now)
        return max(0, self.left(account) - stays)

    # -- settling -----------------------------------------------------------------------------------------------------

    def rate(self, job: Job) -> int:
        """Return what a second costs: at the price of the session's admission, from outside at today's."""
        held = self.held.get(job.session)
        return job.gpus * (held.factor if held and held.is_open else self.prices[job.type])

    def settle(self, jobs: list[Job]) -> None:
        """Charge what has ended, doubt what looks wrong, and close what is over."""
        known = [job for job in jobs if not job.lost and job.gpus]
        for job in known:
            changed, negative = ("changed", job.key), ("negative", job.key)
            use = self.uses.get(job.key)
            if use is not None:
                if (
                    job.shown != use.end
                    and negative not in self.decided | self.doubts.keys()
                    and changed not in (self.decided)
                ):
                    self.doubts.setdefault(changed, use.rate // job.gpus)
            elif job.end and job.shown < job.start:
                if negative not in self.decided:
                    self.doubts.setdefault(negative, self.rate(job))
            elif job.end:
                held = self.held.get(job.session)
                refunded = job.state in _REFUNDED or (held is not None and not held.usable)
                rate = self.rate(job)
                self.uses[job.key] = Use(job.user, job.account, job.start, job.shown, rate, job.session, refunded)
        for held in self.held.values():
            if held.is_open and self._is_over(held, jobs):
                held.is_open = False
        self.running = [job for job in known if not job.end and not job.session]
        self.expire({g.account for g in self.gifts if self.now - RECHECK_PERIOD < g.expires <= self.now})

    def _is_over(self, held: Held, jobs: list[Job]) -> bool:
        if not held.has_row:
            return held.at < self.now - UNWRITTEN_TIMEOUT
        if not held.over:
            return False
        ours = [job for job in jobs if job.session == held.id and job.gpus]
        if ours and ours[-1].lost:
            wait = GRACE if held.usable else 60
            if held.over > self.now - wait:
                return False
            if not held.usable or ("missing", held.id) in self.decided:
                return True
            self.doubts.setdefault(("missing", held.id), 0)
            return False
        return all(job.key in self.uses or ("negative", job.key) in self.decided for job in ours)

    def decide(self, kind: str, job: Job, factor: int, seconds: int) -> None:
        """Charge what a person decided: for a record that was not charged, or the difference for one that was."""
        if kind == "negative":
            rate = factor
            self.uses[job.key] = Use(job.user, job.account, job.start, job.start + seconds, rate, job.session)
            return
        use = self.uses[job.key]
        more = (seconds - (use.end - use.start)) * use.rate
        more = max(0, more) if use.refunded else more  # what was not paid cannot be given back
        self.window_moments.append(Moment(job.user, job.account, use.end, more, job.session))

    # -- promises -----------------------------------------------------------------------------------------------------

    def overrun(self) -> list[str]:
        """Return the hard rules on GPU time that the sessions go beyond which were admitted under them."""
        found = []
        for rule in self.rules:
            if rule.gpu_time is None or rule.soft or not self.in_force(rule):
                continue
            taken: dict[str, int] = {}
            for held in self.held.values():
                if rule.id in held.watched:
                    mine = [use for use in self.uses.values() if use.session == held.id and not use.refunded]
                    part = sum(use.rate * self.seconds(rule, use.start, use.end) for use in mine)
                    part = held.amount if held.is_open else min(held.amount, part)
                    taken[self._whose(rule, held)] = taken.get(self._whose(rule, held), 0) + part
            for moment in self.window_moments:  # what a person gave back made room
                if moment.amount < 0 and self._whose(rule, moment) in taken:
                    taken[self._whose(rule, moment)] += moment.amount
            found += [f"{rule.id} {whose}: {much}" for whose, much in taken.items() if much > rule.gpu_time]
        return found

    def _whose(self, rule: Any, what: Any) -> str:
        if rule.together:
            return str(rule.name) if what.user in self.members[rule.name] else ""
        return str(what.account if rule.who.value == "account" else what.user)


def _against(limits: list[tuple[str, str, int, int]], wish: Wish) -> set[tuple[str, str]]:
    asked = {
        "gpu-time": wish.cost,
        "concurrent-gpus": 0 if wish.held else wish.gpus,
        "session-gpus": wish.gpus,
        "sessions": 0 if wish.held else 1,
        "sessions-per-day": 0 if wish.held else 1,
        "time-limit": wish.seconds,
        "gpu-types": wish.gpus,
        "needs-grant": wish.cost,
        "may-extend": 1 if wish.held else 0,
    }
    return {(id, why) for id, why, limit, taken in limits if asked[why] > 0 and taken + asked[why] > limit}


def _is_of(what: Any, account: str, users: frozenset[str] | None) -> bool:
    return what.account == account if users is None else what.user in users
