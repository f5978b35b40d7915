"""Acts of administrators, and in the same transaction what they change. Synchronous, called in a thread.

The hub is the only writer, except of ``mailed``, which the service that mails a message writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.administration.acts import LOCK_USER, UNLOCK_USER, Act, Actor
from carme_hub.domain.administration.messages import Incident, Kind, Message, Update
from carme_hub.domain.administration.start_stops import StartStop
from carme_hub.errors import StoreError
from carme_hub.store.engine import READ_ONLY, chunks

from .tables import act as acts
from .tables import incident_update as updates
from .tables import message as messages
from .tables import recipient as recipients
from .tables import start_stop as stops

#: Seconds after the end of a message for which it is known who has seen it.
RECIPIENTS_KEPT = 30 * 86_400.0


class AdministrationStore:
    """What administrators of one cluster do. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    # -- acts ---------------------------------------------------------------------------------------------------------

    def begin(self, act: Act) -> int:
        """Store an act before it is done, and return its id."""
        return int(self._write(lambda connection: self._add_act(connection, act)))

    def finish(self, id: int, outcome: str, details: Mapping[str, str]) -> None:
        """Store what came of an act."""
        values = {"outcome": outcome, "details": dict(details)}
        self._write(lambda connection: connection.execute(update(acts).where(acts.c.id == id).values(**values)))

    def acts(self, limit: int, offset: int = 0, action: str = "", actor: str = "") -> tuple[list[Act], int]:
        """Return acts, the newest first, and how many there are."""
        where = [acts.c.cluster == self._cluster]
        where += [acts.c.action == action] if action else []
        where += [acts.c.actor == actor] if actor else []
        order = acts.c.id.desc()
        rows = self._read(select(acts).where(*where).order_by(order).limit(limit).offset(offset))
        [[count]] = self._read(select(func.count()).select_from(acts).where(*where))
        return [_act(row) for row in rows], int(count)

    def locks(self) -> list[Act]:
        """Return the act that locked each user who is locked now."""
        asked = (acts.c.cluster == self._cluster, acts.c.action.in_((LOCK_USER, UNLOCK_USER)))
        newest = {row.target: row for row in self._read(select(acts).where(*asked).order_by(acts.c.id))}
        return [_act(row) for row in newest.values() if row.action == LOCK_USER]

    # -- messages -----------------------------------------------------------------------------------------------------

    def add_message(self, message: Message, users: Collection[str], act: Act) -> None:
        """Store a message for users, or an announcement for all (no users)."""

        def write(connection: Connection) -> None:
            over = select(messages.c.id).where(messages.c.ends < message.at - RECIPIENTS_KEPT)
            connection.execute(delete(recipients).where(recipients.c.message.in_(over)))
            connection.execute(insert(messages).values(**_message_row(message), cluster=self._cluster, mailed=0.0))
            for some in chunks(users):
                connection.execute(insert(recipients), [{"message": message.id, "user": user} for user in some])
            self._add_act(connection, act)

        self._write(write)

    def withdraw(self, id: str, at: float, act: Act) -> None:
        """Take back a message or an announcement."""

        def write(connection: Connection) -> None:
            connection.execute(update(messages).where(messages.c.id == id).values(withdrawn=at))
            self._add_act(connection, act)

        self._write(write)

    def add_update(self, id: str, written: Update, ends: float | None, act: Act) -> None:
        """Store what is added to an incident. ``ends``: None = it goes on."""

        def write(connection: Connection) -> None:
            values = {"message": id, "at": written.at, "actor": written.actor, "text": written.text}
            connection.execute(insert(updates).values(**values))
            if ends is not None:
                connection.execute(update(messages).where(messages.c.id == id).values(ends=ends))
            self._add_act(connection, act)

        self._write(write)

    def incidents(self, since: float, limit: int) -> list[Incident]:
        """Return incidents that were not over before a time, the newest first; those that were taken back are not."""
        where = (messages.c.cluster == self._cluster, messages.c.kind == Kind.INCIDENT.value)
        shown = (messages.c.ends >= since, messages.c.withdrawn == 0.0)
        found = self._messages(select(messages).where(*where, *shown).order_by(messages.c.at.desc()).limit(limit))
        written: dict[str, list[Update]] = {}
        for some in chunks(each.id for each in found):
            for row in self._read(select(updates).where(updates.c.message.in_(some)).order_by(updates.c.id)):
                written.setdefault(row.message, []).append(Update(float(row.at), row.actor, row.text))
        return [Incident(each, tuple(written.get(each.id, ()))) for each in found]

    def mark_seen(self, id: str, user: str, at: float) -> None:
        """Store that a user has seen a message; the first time counts."""
        where = (recipients.c.message == id, recipients.c.user == user, recipients.c.seen == 0.0)
        self._write(lambda connection: connection.execute(update(recipients).where(*where).values(seen=at)))

    def current_messages(self, now: float) -> list[tuple[Message, list[str]]]:
        """Return what is neither over nor withdrawn, the oldest first, with the users who have not seen it."""
        where = (messages.c.cluster == self._cluster, messages.c.ends > now, messages.c.withdrawn == 0.0)
        found = self._messages(select(messages).where(*where).order_by(messages.c.at))
        unseen: dict[str, list[str]] = {}
        columns = (recipients.c.message, recipients.c.user)
        for some in chunks(each.id for each in found):
            wanted = (recipients.c.message.in_(some), recipients.c.seen == 0.0)
            for row in self._read(select(*columns).where(*wanted)):
                unseen.setdefault(row.message, []).append(row.user)
        return [(each, unseen.get(each.id, [])) for each in found]

    def messages(self, limit: int, offset: int = 0) -> tuple[list[Message], int]:
        """Return messages and announcements, the newest first, and how many there are."""
        where = messages.c.cluster == self._cluster
        order = messages.c.at.desc()
        found = self._messages(select(messages).where(where).order_by(order).limit(limit).offset(offset))
        [[count]] = self._read(select(func.count()).select_from(messages).where(where))
        return found, int(count)

    def message(self, id: str) -> Message | None:
        """Return one message or announcement."""
        where = (messages.c.id == id, messages.c.cluster == self._cluster)
        return next(iter(self._messages(select(messages).where(*where))), None)

    def to_mail(self, now: float) -> list[tuple[Message, list[str]]]:
        """Return the messages that are to be mailed and are not yet, each with its users who have not seen it."""
        where = (messages.c.cluster == self._cluster, messages.c.mailed == 0.0, messages.c.mail.is_(True))
        current = (messages.c.ends > now, messages.c.withdrawn == 0.0)
        found = []
        for message in self._messages(select(messages).where(*where, *current)):
            wanted = (recipients.c.message == message.id, recipients.c.seen == 0.0)
            found.append((message, [row.user for row in self._read(select(recipients.c.user).where(*wanted))]))
        return found

    def mark_mailed(self, id: str, at: float) -> None:
        """Store that a message was handed to the sender of notices."""
        self._write(
            lambda connection: connection.execute(update(messages).where(messages.c.id == id).values(mailed=at))
        )

    # -- new starts ---------------------------------------------------------------------------------------------------

    def add_stop(self, rule: StartStop, act: Act) -> None:
        """Store a rule that stops new starts."""

        def write(connection: Connection) -> None:
            names = ("id", "at", "actor", "reason", "profile", "partition", "is_default", "until", "lifted")
            values = {name: getattr(rule, name) for name in names}
            connection.execute(insert(stops).values(**values, cluster=self._cluster))
            self._add_act(connection, act)

        self._write(write)

    def lift(self, id: str, at: float, act: Act) -> None:
        """Store that a rule is lifted."""

        def write(connection: Connection) -> None:
            connection.execute(update(stops).where(stops.c.id == id).values(lifted=at))
            self._add_act(connection, act)

        self._write(write)

    def stops(self, now: float) -> list[StartStop]:
        """Return the rules in force, the oldest first."""
        where = (stops.c.cluster == self._cluster, stops.c.lifted == 0.0)
        found = [_stop(row) for row in self._read(select(stops).where(*where).order_by(stops.c.at))]
        return [rule for rule in found if rule.in_force(now)]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _add_act(self, connection: Connection, act: Act) -> int:
        values = {
            "cluster": self._cluster,
            "at": act.at,
            "actor": act.actor.name,
            "interface": act.actor.interface,
            "action": act.action,
            "target": act.target[:255],
            "reason": act.reason,
            "details": dict(act.details),
            "outcome": act.outcome,
        }
        [id] = connection.execute(insert(acts).values(**values)).inserted_primary_key or (0,)
        return int(id)

    def _messages(self, statement: Any) -> list[Message]:
        rows = self._read(statement)
        counts = self._counts([row.id for row in rows if row.kind == Kind.MESSAGE.value])
        return [_message(row, *counts.get(row.id, (0, 0))) for row in rows]

    def _counts(self, ids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return of messages for how many users each is, and how many have seen it."""
        found: dict[str, tuple[int, int]] = {}
        for some in chunks(ids):
            for seen, column in ((False, recipients.c.seen == 0.0), (True, recipients.c.seen > 0.0)):
                wanted = (recipients.c.message.in_(some), column)
                columns = (recipients.c.message, func.count())
                for id, count in self._read(select(*columns).where(*wanted).group_by(recipients.c.message)):
                    total, known = found.get(id, (0, 0))
                    found[id] = (total + count, known + (count if seen else 0))
        return found

    def _write(self, change: Any) -> Any:
        try:
            with self._engine.begin() as connection:
                return change(connection)
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take what an administrator does: {error}") from error

    def _read(self, statement: Any) -> Sequence[Any]:
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return list(connection.execute(statement))
        except SQLAlchemyError as error:
            raise StoreError(f"What administrators do cannot be read: {error}") from error


def _act(row: Any) -> Act:
    actor = Actor(row.actor, row.interface)
    return Act(float(row.at), actor, row.action, row.target, row.reason, dict(row.details), row.outcome, int(row.id))


def _message_row(message: Message) -> dict[str, Any]:
    names = ("id", "at", "actor", "target", "text", "begins", "ends", "mail", "withdrawn")
    return {"kind": message.kind.value, **{name: getattr(message, name) for name in names}}


def _message(row: Any, total: int, seen: int) -> Message:
    times = (float(row.begins), float(row.ends), bool(row.mail), float(row.withdrawn))
    return Message(row.id, Kind(row.kind), float(row.at), row.actor, row.target, row.text, *times, total, seen)


def _stop(row: Any) -> StartStop:
    about = (row.id, float(row.at), row.actor, row.reason, row.profile, row.partition, bool(row.is_default))
    return StartStop(*about, float(row.until), float(row.lifted))
