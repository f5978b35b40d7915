"""What administrators do in the hub, and what users see of it: messages, announcements, and whether anything may start.

Each act is in the database, with who and why, in the transaction that has its effect; an act on something outside of
the database is stored before it is done, and what came of it afterwards. Then it is reported to the audit log.

What users see is kept in memory as well, where every home page, form and session looks: the hub is the only writer, and
reads it from the database at its start.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from carme_hub.domain.administration import acts
from carme_hub.domain.administration.acts import Act, Actor
from carme_hub.domain.administration.messages import USUAL_SECONDS, Incident, Kind, Message, Update, check_period
from carme_hub.domain.administration.start_stops import StartsStopped, StartStop, sentence, stop_for
from carme_hub.domain.administration.texts import MOST_REASON, BadAct, checked_reason, checked_text
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import CarmeError, Refused, StoreError
from carme_hub.store.administration.store import AdministrationStore
from carme_hub.store.threads import in_store_thread

from .locked_users import LOCKED, LockedUsers

log = logging.getLogger(__name__)

#: Seconds for which incidents are shown after their end, and how many at most.
HISTORY_SECONDS, MOST_INCIDENTS = 30 * 86_400.0, 100


class Unknown(Refused):
    """There is no such message, announcement or rule, or it is over already."""

    reason = "unknown"


class Administration:
    """Acts of administrators, and what is in force.

    Args:
        report: called with each act once it is known what came of it. say: returns a time as words, for users.
        locked: the users who are kept out; the default is what this process's authenticator asks.
    """

    def __init__(
        self,
        store: AdministrationStore,
        report: Callable[[Act], None],
        say: Callable[[float], str],
        clock: Callable[[], float] = time.time,
        locked: LockedUsers = LOCKED,
    ) -> None:
        self.store = store
        self.locked = locked
        self._report, self._say, self._clock = report, say, clock
        self._stops: dict[str, StartStop] = {}
        self._messages: dict[str, Message] = {}
        self._unseen: dict[str, dict[str, None]] = {}  # ids of messages by user, oldest first
        self._incidents: list[Incident] | None = None  # None: they are to be read
        self._changes = 0
        self._read_after: tuple[int, asyncio.Task[list[Incident]] | None] = 0, None  # reads them after that change

    async def load(self) -> None:
        """Read what is in force; called once, before anything else."""
        now = self._clock()
        self._stops = {rule.id: rule for rule in await in_store_thread(self.store.stops, now)}
        self.locked.replace(await in_store_thread(self.store.locks))
        for message, users in await in_store_thread(self.store.current_messages, now):
            self._note(message, users)

    def _note(self, message: Message, users: Collection[str]) -> None:
        self._messages[message.id] = message
        for user in users:
            self._unseen.setdefault(user, {})[message.id] = None

    # -- what users see -----------------------------------------------------------------------------------------------

    def stops(self) -> list[StartStop]:
        """Return the rules that stop new starts, the oldest first."""
        now = self._clock()
        return [rule for rule in self._stops.values() if rule.in_force(now)]

    def why_not(self, request: Request) -> str:
        """Return why a request may not start now, "" = no rule stops it."""
        now = self._clock()
        rule = stop_for(request, self._stops.values(), now) if self._stops else None
        return sentence(rule, self._say(rule.until) if rule.until else "") if rule is not None else ""

    def check_start(self, request: Request) -> None:
        """Raise ``StartsStopped`` if a rule stops a request."""
        if why := self.why_not(request):
            raise StartsStopped(why)

    def messages_of(self, user: str) -> list[Message]:
        """Return the messages that a user has not seen, the oldest first."""
        now = self._clock()
        found = [self._messages[id] for id in self._unseen.get(user, ())]
        return [each for each in found if each.is_shown(now)]

    def announcements(self) -> list[Message]:
        """Return what is announced to everybody now, the oldest first."""
        now = self._clock()
        return [each for each in self._messages.values() if each.kind is not Kind.MESSAGE and each.is_shown(now)]

    async def message(self, id: str) -> Message | None:
        """Return a message or an announcement, as it is stored."""
        return await in_store_thread(self.store.message, id)

    async def seen(self, user: str, id: str) -> None:
        """Store that a user has seen a message.

        Raises:
            Unknown: there is no such message for the user, or they have seen it before. StoreError: it is not stored.
        """
        if id not in self._unseen.get(user, ()):
            raise Unknown("There is no such message for you, or you have seen it already.")
        await in_store_thread(self.store.mark_seen, id, user, self._clock())
        mine = self._unseen.get(user, {})
        if mine.pop(id, 0) is None and id in self._messages:
            self._messages[id] = replace(self._messages[id], seen=self._messages[id].seen + 1)
        if not mine:
            self._unseen.pop(user, None)

    # -- acts ---------------------------------------------------------------------------------------------------------

    async def send(
        self, by: Actor, target: str, users: Collection[str], text: str, reason: str, ends: float = 0.0, *, mail: bool
    ) -> Message:
        """Send a message.

        Args:
            target: for whom, as words. ends: 0 = after the usual time.

        Raises:
            BadAct: text, reason or time cannot be used, or it would be for nobody. StoreError: nothing was sent.
        """
        now = self._clock()
        text, reason, ends = checked_text(text), checked_reason(reason), ends or now + USUAL_SECONDS
        check_period(now, ends, now)
        if not users:
            raise BadAct(f"There is nobody whom it would reach: {target}.", "name")
        message = Message(
            *(str(uuid.uuid4()), Kind.MESSAGE, now, by.name, target, text, now, ends),
            mail=mail,
            recipients=len(set(users)),
        )
        details = {"message": message.id, "text": text, "recipients": str(len(set(users))), "mail": str(mail).lower()}
        act = Act(now, by, acts.MESSAGE, target, reason, details, acts.DONE)
        await in_store_thread(self.store.add_message, message, users, act)
        self._note(message, users)
        self._report(act)
        return message

    async def announce(self, by: Actor, kind: Kind, text: str, reason: str, begins: float, ends: float) -> Message:
        """Announce something to everybody.

        Args:
            begins, ends: of an announcement, when it is shown; of a maintenance, when that is.

        Raises:
            BadAct: a value cannot be used. StoreError: nothing was announced.
        """
        now = self._clock()
        text, reason, begins = checked_text(text), checked_reason(reason), begins or now
        check_period(begins, ends, now)
        message = Message(str(uuid.uuid4()), kind, now, by.name, "everybody", text, begins, ends)
        details = {"message": message.id, "kind": kind.value, "text": text}
        details |= {"begins": str(int(begins)), "ends": str(int(ends))}
        act = Act(now, by, acts.ANNOUNCE, "everybody", reason, details, acts.DONE)
        await self._change(self.store.add_message, message, (), act)
        self._note(message, ())
        self._report(act)
        return message

    async def update_incident(self, by: Actor, id: str, text: str, *, over: bool) -> Message:
        """Add to an incident that goes on, for users to read; the text is the reason in the audit log, too.

        Args:
            over: it has ended with this.

        Raises:
            BadAct: the text cannot be used. Unknown: there is no such incident. StoreError: nothing was added.
        """
        now, text = self._clock(), checked_text(text)
        known = self._messages.get(id)
        if known is None or known.kind is not Kind.INCIDENT or not known.is_shown(now):
            raise Unknown("There is no such incident, or it is over already.")
        action = acts.END_INCIDENT if over else acts.UPDATE_INCIDENT
        act = Act(now, by, action, known.target, " ".join(text.split())[:MOST_REASON], {"message": id}, acts.DONE)
        await self._change(self.store.add_update, id, Update(now, by.name, text), now if over else None, act)
        if over:
            self._messages.pop(id, None)
        self._report(act)
        return replace(known, ends=now if over else known.ends)

    async def incidents(self) -> list[Incident]:
        """Return the incidents of the last days, and those that go on, the newest first.

        They are read once, and again after each change, and once for all who ask meanwhile: where the status page is
        public, anybody may ask for them, also while the database does not answer.
        """
        since, found = self._clock() - HISTORY_SECONDS, self._incidents
        if found is None:
            found = await asyncio.shield(self._reading())
        return [each for each in found if each.message.ends >= since]

    def _reading(self) -> asyncio.Task[list[Incident]]:
        """Return the task that reads the incidents, which begins after the last change of them."""
        changes, task = self._read_after
        if task is None or task.done() or changes != self._changes:
            task = asyncio.get_running_loop().create_task(self._read_incidents(self._changes), name="carme-incidents")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may have gone
            self._read_after = self._changes, task
        return task

    async def _read_incidents(self, changes: int) -> list[Incident]:
        found = await in_store_thread(self.store.incidents, self._clock() - HISTORY_SECONDS, MOST_INCIDENTS)
        if changes == self._changes:
            self._incidents = found
        return found

    async def _change(self, change: Callable[..., None], *values: Any) -> None:
        """Let the store change what incidents there are; where it fails, it may have changed it nevertheless."""
        try:
            await in_store_thread(change, *values)
        finally:
            self._incidents, self._changes = None, self._changes + 1

    async def withdraw(self, by: Actor, id: str, reason: str) -> Message:
        """Take back a message from those who have not seen it, or an announcement.

        Raises:
            BadAct: the reason cannot be used. Unknown: it is over, was taken back, or everybody has seen it.
        """
        now, reason = self._clock(), checked_reason(reason)
        known = self._messages.get(id)
        if known is None or not known.can_be_withdrawn(now):
            raise Unknown("There is no such message, it is over, or everybody has seen it.")
        details = {"message": id, "text": known.text, "seen": f"{known.seen} of {known.recipients}"}
        act = Act(now, by, acts.WITHDRAW, known.target, reason, details, acts.DONE)
        await self._change(self.store.withdraw, id, now, act)
        self._messages.pop(id, None)
        for user in [user for user, ids in self._unseen.items() if id in ids]:
            self._unseen[user].pop(id)
        self._report(act)
        return replace(known, withdrawn=now)

    async def stop_starts(
        self, by: Actor, reason: str, profile: str = "", partition: str = "", until: float = 0.0, *, is_default: bool
    ) -> StartStop:
        """Let nothing new start, or nothing of a profile or partition; what runs is not concerned.

        Args:
            reason: users read it. until: 0 = until starts are allowed again. is_default: of the partition.

        Raises:
            BadAct: a value cannot be used. StoreError: starts are not stopped.
        """
        now, reason = self._clock(), checked_reason(reason)
        if until:
            check_period(now, until, now)
        rule = StartStop(str(uuid.uuid4()), now, by.name, reason, profile, partition, is_default, until)
        details = {"rule": rule.id, "until": str(int(until)) if until else ""}
        act = Act(now, by, acts.STOP_STARTS, rule.about, reason, details, acts.DONE)
        await in_store_thread(self.store.add_stop, rule, act)
        self._stops[rule.id] = rule
        self._report(act)
        return rule

    async def allow_starts(self, by: Actor, id: str, reason: str) -> StartStop:
        """Lift a rule that stops new starts.

        Raises:
            BadAct: the reason cannot be used. Unknown: there is no such rule in force. StoreError: it is still.
        """
        now, reason = self._clock(), checked_reason(reason)
        rule = self._stops.get(id)
        if rule is None or not rule.in_force(now):
            raise Unknown("There is no such rule, or it is over already.")
        act = Act(now, by, acts.ALLOW_STARTS, rule.about, reason, {"rule": id}, acts.DONE)
        await in_store_thread(self.store.lift, id, now, act)
        self._stops.pop(id, None)
        self._report(act)
        return replace(rule, lifted=now)

    async def lock_user(self, by: Actor, user: str, reason: str) -> Act:
        """Keep a user out of the hub, whether the hub knows them or not; return the lock, also one that was there.

        Raises:
            BadAct: the reason cannot be used, or it is oneself. StoreError: the user is not locked.
        """
        reason = checked_reason(reason)
        if by.name == user:
            raise BadAct("You would lock yourself out. Ask another administrator.", "name")
        known = self.locked.lock_of(user)
        if known is not None:
            return known
        act = Act(self._clock(), by, acts.LOCK_USER, user, reason, {}, acts.DONE)
        await in_store_thread(self.store.begin, act)
        self.locked.add(act)
        self._report(act)
        return act

    async def unlock_user(self, by: Actor, user: str, reason: str) -> None:
        """Let a user in again, where the hub's settings do.

        Raises:
            BadAct: the reason cannot be used. Unknown: the user is not locked. StoreError: the user still is.
        """
        reason = checked_reason(reason)
        if self.locked.lock_of(user) is None:
            raise Unknown(f"{user[:64]} is not locked.")
        act = Act(self._clock(), by, acts.UNLOCK_USER, user, reason, {}, acts.DONE)
        await in_store_thread(self.store.begin, act)
        self.locked.remove(user)
        self._report(act)

    async def recorded(
        self,
        by: Actor,
        action: str,
        target: str,
        reason: str,
        do: Callable[[], Awaitable[Any]],
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Do something outside of the database: its act is stored before, and what came of it afterwards.

        Raises:
            BadAct: the reason cannot be used. StoreError: it is not stored, and was not done. CarmeError: it failed.
        """
        act = Act(self._clock(), by, action, target, checked_reason(reason), details or {})
        id = await in_store_thread(self.store.begin, act)
        try:
            await do()
        except CarmeError as error:
            await self._finished(id, replace(act, outcome=str(error)[:500] or type(error).__name__))
            raise
        except (Exception, asyncio.CancelledError):
            self._report(act)
            raise
        await self._finished(id, replace(act, outcome=acts.DONE))

    async def note(
        self, by: Actor, action: str, target: str, reason: str, details: Mapping[str, str], outcome: str = ""
    ) -> None:
        """Store what somebody else has done already, such as the site's own command on a node.

        Args:
            outcome: why it failed; "" = it is done.

        Raises:
            BadAct: the reason cannot be used. StoreError: it is not stored.
        """
        act = Act(self._clock(), by, action, target, checked_reason(reason), details, outcome or acts.DONE)
        await in_store_thread(self.store.begin, act)
        self._report(act)

    async def _finished(self, id: int, act: Act) -> None:
        """Store what came of an act that has been done; where that fails, its row says that it is not known."""
        try:
            await in_store_thread(self.store.finish, id, act.outcome, act.details)
        except StoreError as error:  # whoever acted must not read that nothing was changed
            log.warning("What came of %s of %s is not stored: %s", act.action, act.target, error)
        finally:
            self._report(act)
