"""Watches for idle sessions: decides by the policy's rules once a minute, stores warnings, and ends what is due.

State before action: a warning is stored before anybody is told, and a session's end before it is cancelled
(``idle.ending``), which decides again before it does so. A look that cannot read the database decides nothing. After a
break (the hub was away or hung, or the database was) nothing is ended before its user has had the time of the last
warning to say something. The hub runs one watch; pages read ``states``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carme_hub.domain.activity.idle import MOST_BEHIND, IdleState, IdleTail, decide, follow, minute_is_idle
from carme_hub.domain.activity.minutes import HOUR, Minute
from carme_hub.domain.quotas.idle.rules import Action, IdleRule, first_rule, rule_for
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import Refused, StoreError
from carme_hub.store.activity import ActivityStore
from carme_hub.store.idle import HERE, KEPT, TOLD, WARNED, IdleEvent, IdleStore
from carme_hub.store.threads import in_store_thread

from .idle.ending import EndSteps, OrderlyEnds
from .idle.order import Order
from .idle.trial import subject_of

#: Seconds between two looks, and the age of the oldest minute that a later look reads of a session that reports.
INTERVAL, RECENT = 60.0, 900.0
#: Seconds without a look that are a break: for so long no page was answered either, and no click stored.
BREAK = 5 * INTERVAL
#: Sessions that are looked at in one step of the event loop.
AT_ONCE = 20


class NotIdle(Refused):
    """The click changes nothing."""

    reason = "not-idle"


class NoClicksLeft(Refused):
    """The rule allows no more clicks."""

    reason = "no-clicks-left"


@dataclass(frozen=True, slots=True)
class IdleSession:
    """A session for which a rule is in force: what is decided of it, and how many clicks its user has left.

    ``ending``: its server is being asked to put it in order.
    """

    rule: IdleRule
    state: IdleState
    clicks_left: int
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the watch needs of the hub.

    Attributes:
        sessions: open ones. companions: of a session, how many. person: of a user. cancel: ends a session, with the
            reason that its user reads. put_in_order: asks a session's server, as ``EndSteps`` has it.
    """

    policy: Callable[[], Policy]
    sessions: Callable[[], Iterable[Session]]
    companions: Callable[[str], int]
    person: Callable[[str], Person]
    cancel: Callable[[str, str], Awaitable[None]]
    put_in_order: Callable[[Session, str], Awaitable[Order | None]]
    clock: Callable[[], float] = field(default=time.time)


class IdleWatch:
    """The loop, and the click by which a user says to be there."""

    def __init__(
        self,
        activity: ActivityStore,
        events: IdleStore,
        hub: Surroundings,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._activity, self._events, self._hub, self._log = activity, events, hub, log
        #: By session; without those for which no rule is in force.
        self.states: Mapping[str, IdleSession] = {}
        self._tails: Mapping[str, tuple[IdleRule, IdleTail | None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()  # a click looks too, and nobody is warned twice
        steps = EndSteps(hub.put_in_order, hub.cancel, hub.clock, lambda: hub.policy().zone, self._still_due)
        self.ends = OrderlyEnds(events, steps, log)
        self._looked = self._watched_since = float("-inf")

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self._run(), name="carme-idle")

    async def stop(self) -> None:
        """End the loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, self.ends.stop(), return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)  # the first look comes when reports have had time to come
            try:
                await self.look()
            except StoreError as error:
                self._log.warning("Idle sessions are not looked for now: %s", error)
            except Exception:  # noqa: BLE001  a look that fails does not end the loop
                self._log.exception("Idle sessions were not looked for")

    async def look(self) -> None:
        """Decide on every session once.

        Raises:
            StoreError: the database fails; nothing was decided, or not for all sessions.
        """
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        policy, now = self._hub.policy(), self._hub.clock()
        if now - self._looked > BREAK:
            self._watched_since = now
        rules = await self._rules(policy, now)
        if not rules:
            self.states = {}
            self._looked = now
            return
        tails = await self._follow(rules, now)
        events = await in_store_thread(self._events.of, list(rules))
        states = {}
        for id, (session, rule) in rules.items():
            states[id] = self._decide(session, rule, tails.get(id), events.get(id, []), now)
            await self._act(session, states[id], events.get(id, []), now)
        self.states = states
        self._looked = now  # a look that failed is none: clicks failed as well

    async def _follow(self, rules: Mapping[str, tuple[Session, IdleRule]], now: float) -> Mapping[str, IdleTail | None]:
        """Return what is known of sessions; of one that was looked at before, only newer minutes are read."""
        known = {
            id: tail
            for id, (rule, tail) in self._tails.items()
            if id in rules and rules[id][1] == rule and tail is not None
        }
        recent = [id for id, tail in known.items() if tail.until > now - RECENT]
        # Idle time before the last warning counts too, so that a warning is not given twice.
        first = now - max(rule.after for _, rule in rules.values()) - HOUR
        minutes = await self._minutes([id for id in rules if id not in known], first)
        minutes |= await self._minutes(recent, now - RECENT)
        if back := await self._reporting_again(rules, {id: known[id] for id in known.keys() - set(recent)}):
            minutes |= await self._minutes(back, max(first, min(known[id].until for id in back)))
        self._tails = {
            id: (rule, _followed(known.get(id), minutes.get(id, {}).get(session.node, ()), rule, session))
            for id, (session, rule) in rules.items()
        }
        return {id: tail for id, (_, tail) in self._tails.items()}

    async def _minutes(self, ids: Sequence[str], since: float) -> dict[str, dict[str, tuple[Minute, ...]]]:
        return await in_store_thread(self._activity.minutes, ids, since) if ids else {}

    async def _reporting_again(
        self, rules: Mapping[str, tuple[Session, IdleRule]], silent: Mapping[str, IdleTail]
    ) -> list[str]:
        """Return those of the sessions without recent minutes that have newer ones than are known, without these."""
        if not silent:
            return []
        until = await in_store_thread(self._activity.newest, list(silent))
        return [id for id, tail in silent.items() if until.get((id, rules[id][0].node), 0) > tail.until]

    async def _rules(self, policy: Policy, now: float) -> dict[str, tuple[Session, IdleRule]]:
        """Return the sessions for which a rule is in force; other tasks run in between."""
        found = {}
        for number, session in enumerate(tuple(self._hub.sessions()) if policy.idle else ()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            rule = self._rule(session, policy, now)
            if rule is not None:
                found[session.id] = session, rule
        return found

    def _rule(self, session: Session, policy: Policy, now: float) -> IdleRule | None:
        if session.parent or session.is_ending or session.state is not SessionState.RUNNING:
            return None
        return rule_for(policy.idle, subject_of(session, self._hub.person), now, policy.zone)

    def _decide(
        self, session: Session, rule: IdleRule, tail: IdleTail | None, events: list[IdleEvent], now: float
    ) -> IdleSession:
        clicks = [event.at for event in events if event.kind == HERE]
        state = decide(
            rule,
            tail,
            clicks=clicks,
            warned=[(event.at, event.seconds) for event in events if event.kind == WARNED],
            companions=self._hub.companions(session.id),
            now=now,
            watched_since=self._watched_since,
            at_work=[event.at for event in events if event.kind == KEPT],
        )
        return IdleSession(rule, state, max(0, rule.still_here - len(clicks)), self.ends.is_ending(session.id))

    async def _act(self, session: Session, found: IdleSession, events: list[IdleEvent], now: float) -> None:
        state, rule = found.state, found.rule
        about = {"action": rule.action.value, "since": state.since, "deadline": state.deadline}
        if state.state == "warn":
            await self._store(IdleEvent(session.id, now, WARNED, state.warning, about))
            self._log.info(
                "Session %s of %s is idle since %.0f; its user is warned, %s s before its end",
                *(session.id, session.user, state.since, state.warning),
            )
        elif state.state == "due" and rule.action is Action.TELL:
            if not any(event.kind == TOLD and event.at >= state.since for event in events):
                await self._store(IdleEvent(session.id, now, TOLD, about=about))
        elif state.state == "due":
            await self.ends.begin(session, rule, state, events)

    async def _still_due(self, id: str, rule: IdleRule, key: float, answered: bool) -> bool:
        """Return whether a session is due by what is known now, after its server was asked at ``key``.

        Raises:
            StoreError: the database fails; nothing was decided.
        """
        async with self._looking:
            policy, now = self._hub.policy(), self._hub.clock()
            session = next((each for each in self._hub.sessions() if each.id == id), None)
            if session is None or self._rule(session, policy, now) != rule:
                return False
            found = await in_store_thread(self._activity.minutes, [id], now - rule.after - HOUR)
            events = await in_store_thread(self._events.of, [id])
            minutes = found.get(id, {}).get(session.node, ())
            if answered:
                minutes = tuple(_without_our_commands(minute, key) for minute in minutes)
            tail = _followed(None, minutes, rule, session)
            # A server that does not answer may be busy: only what it did after the question says that it is idle.
            if not answered and (tail is None or tail.until <= key):
                return False
            return self._decide(session, rule, tail, events.get(id, []), now).state.state == "due"

    async def _store(self, event: IdleEvent) -> None:
        await in_store_thread(self._events.add, event)

    async def still_here(self, id: str) -> None:
        """Begin the idle time of a session anew.

        Raises:
            NotIdle: no rule is in force for it, or it is not idle.
            NoClicksLeft: its user has done so as often as the rule allows.
            StoreError: the database fails; nothing was changed.
        """
        found = self.states.get(id)
        if found is None or not found.state.since:
            raise NotIdle("This session is not idle, so nothing ends it.")
        if not found.clicks_left:
            times = "once" if found.rule.still_here == 1 else f"{found.rule.still_here} times"
            allowed = (
                f"You have said so {times} in this session" if found.rule.still_here else "It is not enough to say so"
            )
            raise NoClicksLeft(f"{allowed}. Work in it, and it stays: a cell, a terminal or a run.")
        await self._store(IdleEvent(id, self._hub.clock(), HERE))
        try:
            await self.look()
        except StoreError as error:  # the click is stored, and counts at the next look
            self._log.warning("Idle sessions are not looked for now: %s", error)

    async def evidence(self, session: Session) -> tuple[str, str]:
        """Return what is to be said to another culler of a session, and why.

        Returns:
            "ours": a rule or an exemption of the policy is for it. "busy": something was at work in the last minutes.
            "unknown": it is not known. "free": nothing was at work, and no rule is for it.

        Raises:
            StoreError: the database fails.
        """
        policy, now = self._hub.policy(), self._hub.clock()
        subject = subject_of(session, self._hub.person)
        if first_rule(policy.idle, subject, now, policy.zone) is not None:
            return "ours", "the site's policy says what happens while it is idle"
        if self._hub.companions(session.id):
            return "busy", "it has more nodes for its runs"
        found = await in_store_thread(self._activity.minutes, [session.id], now - RECENT)
        minutes = found.get(session.id, {}).get(session.node, ())
        if not minutes or now - minutes[-1].at - minutes[-1].seconds > MOST_BEHIND:
            return "unknown", "it reports nothing"
        states = [minute_is_idle(minute, _USUAL, has_gpus=subject.has_gpus) for minute in minutes]
        for state, is_idle in (("busy", False), ("unknown", None)):
            because = [why for idle, why in states if idle is is_idle]
            if because:
                return state, because[-1]
        return "free", ""


def _followed(tail: IdleTail | None, minutes: Iterable[Minute], rule: IdleRule, session: Session) -> IdleTail | None:
    return follow(tail, minutes, rule, has_gpus=bool(session.request.gpus))


def _without_our_commands(minute: Minute, asked: float) -> Minute:
    """Return a minute without CPUs if its server was being asked then: the commands before an end use some."""
    ours = minute.cpu is not None and minute.at + minute.seconds > asked
    return replace(minute, cpu=0.0) if ours else minute


#: The bounds for sessions without a rule.
_USUAL = IdleRule(Action.STOP)
