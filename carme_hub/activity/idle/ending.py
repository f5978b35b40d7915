"""The orderly end of an idle session: its server puts it in order, and then it is ended as by its user.

State before action, and once: the event ``ending`` is stored before the server is asked, and its time is the key by
which the server knows a question that comes again. So a hub that was killed in between asks again and nothing is done
twice. The answer may take minutes, so after it everything is decided again: the server says if something is at work
now, which the reports cannot know yet; the user may have said to be there; and what was reported meanwhile, or is not
reported any more, is decided on as in a look. Where the session is not due any more it goes on, and looks go on too.

The event ``ended`` has the reason with which the session is cancelled. Only a session that has this reason was ended
as idle: its user, or the end of its time, may have been faster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.activity.idle import IdleState
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.domain.sessions.session import Session
from carme_hub.domain.wording import duration
from carme_hub.store.idle import ENDED, ENDING, HERE, KEPT, IdleEvent, IdleStore
from carme_hub.store.threads import in_store_thread

from .order import Order, order_sentence

#: Seconds after which a question to a server is another one.
SAME_QUESTION = 900.0


@dataclass(frozen=True, slots=True)
class EndSteps:
    """What an end needs of the hub.

    Attributes:
        put_in_order: asks the session's server, with a key; None where it does not answer. cancel: ends a session, with
            the reason that its user reads. zone: of the policy.
        still_due: decides on a session again by what is known now. It is given the rule, the key, and whether the
            server has answered.
    """

    put_in_order: Callable[[Session, str], Awaitable[Order | None]]
    cancel: Callable[[str, str], Awaitable[None]]
    clock: Callable[[], float]
    zone: Callable[[], str]
    still_due: Callable[[str, IdleRule, float, bool], Awaitable[bool]]


class OrderlyEnds:
    """The ends that are on their way, one task for each session."""

    def __init__(
        self, events: IdleStore, hub: EndSteps, log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self._events, self._hub, self._log = events, hub, log
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def is_ending(self, id: str) -> bool:
        """Return whether a session is being put in order."""
        return id in self._tasks

    async def begin(self, session: Session, rule: IdleRule, state: IdleState, events: Sequence[IdleEvent]) -> None:
        """Begin the end of a session, unless it has begun.

        Args:
            events: of the session, as stored, by which it was decided that it is due.

        Raises:
            StoreError: the database fails; nothing was begun.
        """
        if session.id in self._tasks:
            return
        now = self._hub.clock()
        asked = [each.at for each in events if each.kind == ENDING and now - each.at < SAME_QUESTION]
        key = max(asked, default=0.0)
        if not key or any(each.at >= key for each in events if each.kind in (HERE, KEPT)):
            key = now
            await self._store(IdleEvent(session.id, now, ENDING))
        seen = frozenset(each.id for each in events)
        task = asyncio.create_task(self._end(session, rule, state, key, seen), name=f"carme-idle-end-{session.id}")
        self._tasks[session.id] = task
        task.add_done_callback(lambda done: self._done(session, done))

    async def wait(self) -> None:
        """Wait for the ends that are on their way."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def stop(self) -> None:
        """Leave the ends where they are; the next hub goes on."""
        for task in self._tasks.values():
            task.cancel()
        await self.wait()

    def _done(self, session: Session, task: asyncio.Task[None]) -> None:
        self._tasks.pop(session.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.warning("Session %s of %s is not ended yet: %s", session.id, session.user, error)

    async def _end(self, session: Session, rule: IdleRule, state: IdleState, key: float, seen: Collection[int]) -> None:
        """End a session that is due by the events with the numbers ``seen``."""
        order = await self._hub.put_in_order(session, f"{session.id[:8]}-{key:.3f}")
        if order is not None and order.at_work:
            self._log.info("Session %s of %s goes on: %s at work", session.id, session.user, order.at_work)
            await self._store(IdleEvent(session.id, self._hub.clock(), KEPT, about={"because": order.at_work}))
            return
        newer = (await in_store_thread(self._events.of, [session.id])).get(session.id, [])
        # By number, not by time: a click may have been stored after the events were read and before the key was made.
        if any(each.kind == HERE and each.id not in seen for each in newer):
            self._log.info("Session %s of %s goes on: its user is there", session.id, session.user)
            return
        if not await self._hub.still_due(session.id, rule, key, order is not None):
            self._log.info("Session %s of %s goes on: it is not due by what is known now", session.id, session.user)
            return
        reason = await self._ended(session, rule, state, order, newer)
        self._log.info("Session %s of %s is ended: idle since %.0f", session.id, session.user, state.since)
        await self._hub.cancel(session.id, reason)

    async def _ended(
        self, session: Session, rule: IdleRule, state: IdleState, order: Order | None, events: Sequence[IdleEvent]
    ) -> str:
        """Store that a session is ended, unless a hub that was killed before it did so has, and return the reason."""
        before = [each for each in events if each.kind == ENDED and each.at >= state.since]
        if before and before[-1].reason:
            return before[-1].reason
        now = self._hub.clock()
        reason = ended_because(rule, state, order, now, self._hub.zone())
        about: dict[str, Any] = {"action": rule.action.value, "since": state.since, "reason": reason}
        about |= {"profile": rule.restart_profile} if rule.restart_profile else {}
        await self._store(IdleEvent(session.id, now, ENDED, about=about))
        return reason

    async def _store(self, event: IdleEvent) -> None:
        await in_store_thread(self._events.add, event)


def ended_because(rule: IdleRule, state: IdleState, order: Order | None, now: float, zone: str) -> str:
    """Return the end reason of a session that was idle too long: why, and what was done before."""
    idle = duration(int(now - state.since) // 60 * 60)
    said = [f"It was idle for {idle}: no kernel, terminal or run was at work, and its GPUs were not used."]
    said.append(order_sentence(order, now, zone))
    if rule.action is Action.RELEASE_GPUS:
        said.append("Start it again without GPUs to look at your files.")
    return " ".join(filter(None, said))
