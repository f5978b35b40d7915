"""What can be asked of the ledger within one transaction. Amounts are integers of milli-GPU-seconds.

Time that was used is what entries with an end say: charges, their refunds, and corrections about some time. Grants
and corrections about no time are what may be used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, literal, literal_column, or_, select

from carme_hub.domain.ledger.entries import SLOT_PREFIX, Balance, Entry, Kind, hold_key
from carme_hub.store.engine import chunks
from carme_hub.store.tables import anomaly as anomalies
from carme_hub.store.tables import ledger, ledger_sum, open_hold
from carme_hub.store.tables import note as notes
from carme_hub.store.tables import session as sessions

from .rows import Anomaly, Note, entry_of, gpus_of

_USED = ledger.c.kind.in_((Kind.CHARGE.value, Kind.CORRECTION.value))


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose entries: an account's, a user's, or those of a set of users; with both, those that are of both."""

    account: str | None = None
    users: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """Use within a window, a positive number, and when the oldest of it ended (0 = there is none)."""

    amount: int = 0
    oldest: int = 0


@dataclass(frozen=True, slots=True)
class OpenHold:
    """All holds of one session that no release has closed, taken together.

    Attributes:
        entry: the first of them. amount: what they hold, a positive number. end: the last one's.
        extensions: how many were added.
        job_id: the session's job as its row says; 0 = not yet known, None = there is no row (yet).
    """

    entry: Entry
    amount: int
    end: float
    extensions: int = 0
    job_id: int | None = None

    @property
    def user(self) -> str:
        """Return whose session it is."""
        return self.entry.user

    @property
    def seconds(self) -> int:
        """Return for how long the GPUs are held."""
        return int(self.end - self.entry.start)


@dataclass(frozen=True, slots=True)
class HoldLine:
    """What the rules need to know of an open hold or of one of its extensions, which is a line of its own here.

    What is held for a reservation is one line, and ``session`` then the reservation's id.

    Attributes:
        amount: a positive number. gpus: how many; 0 for an extension or a reservation. job_id: as in ``OpenHold``.
    """

    account: str
    user: str
    session: str
    amount: int
    end: float
    gpus: int
    job_id: int | None
    is_first: bool
    start: float = 0.0
    is_slot: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries a statement shows; "" and 0 = all. ``since`` and ``until`` are about when they were written."""

    account: str = ""
    user: str = ""
    session: str = ""
    kind: Kind | None = None
    since: float = 0.0
    until: float = 0.0


class LedgerReads:
    """Questions about one cluster's entries, answered from one moment of the database."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self.cluster = cluster

    def entries(self, keys: Collection[str]) -> dict[str, Entry]:
        """Return the entries of these keys that exist."""
        found = (each for some in chunks(keys) for each in self._read(select(ledger).where(ledger.c.key.in_(some))))
        return {entry.key: entry for entry in found}

    def of_session(self, session: str) -> list[Entry]:
        """Return every entry of a session, oldest first."""
        where = (ledger.c.session == session, ledger.c.cluster == self.cluster)
        return self._read(select(ledger).where(*where).order_by(ledger.c.id))

    def balances(self, accounts: Collection[str] | None = None) -> dict[str, Balance]:
        """Return the balance of these accounts, or of all that have entries."""
        columns = (ledger_sum.c.account, ledger_sum.c.kind, ledger_sum.c.timed, ledger_sum.c.amount)
        query = select(*columns).where(ledger_sum.c.cluster == self.cluster)
        found: dict[str, Balance] = {}
        if accounts is not None:
            query = query.where(ledger_sum.c.account.in_(accounts))
            found = dict.fromkeys(accounts, Balance())
        for account, kind, timed, amount in self.run(query):
            balance = found.get(account, Balance())
            if kind in (Kind.HOLD.value, Kind.RELEASE.value):
                found[account] = replace(balance, held=balance.held - amount)
            elif kind == Kind.CHARGE.value or (kind == Kind.CORRECTION.value and timed):
                found[account] = replace(balance, used=balance.used - amount)
            else:
                found[account] = replace(balance, granted=balance.granted + amount)
        return found

    def balance(self, account: str) -> Balance:
        """Return one account's balance."""
        return self.balances((account,))[account]

    def used(self, whose: Subject, since: float = 0, until: float | None = None) -> Used:
        """Return what was used from ``since`` to ``until`` (epoch seconds; the default has no end).

        What crosses an edge counts by its part. An amount is seconds × a whole rate, so parts are whole as well.
        """
        since, start, end, amount = int(since), ledger.c.start, ledger.c.end, ledger.c.amount
        query = self._of(whose).where(_USED, end > since)
        inside: ColumnElement[bool] = start >= since
        first: ColumnElement[int] = case((start < since, since), else_=start)
        last: ColumnElement[int] = end
        if until is not None:
            until = int(until)
            # What lies at one moment (a correction) belongs to the window that ends there.
            query = query.where(or_(start < until, and_(start == until, end == until)))
            inside = and_(inside, end <= until)
            last = case((end > until, until), else_=end)
        part: ColumnElement[int] = amount
        if since or until is not None:
            part = case((inside, amount), else_=amount // (end - start) * (last - first))
        total, oldest = self.run(query.with_only_columns(func.sum(part), func.min(end))).one()
        return Used(-int(total or 0), int(oldest or 0))

    def last_use(self, whose: Subject) -> int:
        """Return the end of the newest use, 0 = there is none: no window from then on has any."""
        ends = (
            self._of(whose).where(ledger.c.kind == kind.value).with_only_columns(func.max(ledger.c.end))
            for kind in (Kind.CHARGE, Kind.CORRECTION)
        )
        # Asked of each kind alone, the index has the answer at its end.
        return max(int(end or 0) for end in self.run(select(*(each.scalar_subquery() for each in ends))).one())

    def oldest_uses(self, whose: Subject, since: float, most: int = 100) -> list[tuple[int, int, int]]:
        """Return (start, end, amount) of what was used since a time, the oldest end first, as positive amounts."""
        query = self._of(whose).where(_USED, ledger.c.end > int(since)).order_by(ledger.c.end).limit(most)
        columns = (ledger.c.start, ledger.c.end, -ledger.c.amount)
        return [(start, end, amount) for start, end, amount in self.run(query.with_only_columns(*columns))]

    def draws(self, account: str) -> list[tuple[int, int]]:
        """Return (epoch second, amount) of all use of an account, at the time when it was held or, without, began."""
        hold = ledger.alias("hold")
        when = func.coalesce(hold.c.start, ledger.c.start).label("when")
        query = (
            select(when, func.sum(ledger.c.amount))
            .select_from(ledger.outerjoin(hold, hold.c.key == literal(hold_key("")) + ledger.c.session))
            .where(ledger.c.cluster == self.cluster, ledger.c.account == account, _USED, ledger.c.end > 0)
        )
        return [(time, -int(amount)) for time, amount in self.run(query.group_by(when))]

    def started(self, whose: Subject, since: float) -> tuple[float, ...]:
        """Return when each session was admitted since a time, open or not."""
        # A hold ends after it begins, so the index on the end narrows this down.
        query = self._of(whose).where(
            ledger.c.kind == Kind.HOLD.value,
            ledger.c.end >= int(since),
            ledger.c.at > since,
            ledger.c.key == literal(hold_key("")) + ledger.c.session,  # the first one, no extension
        )
        return tuple(sorted(row.at for row in self.run(query.with_only_columns(ledger.c.at))))

    def open_holds(self, sessions_only: Collection[str] | None = None) -> dict[str, OpenHold]:
        """Return the open holds of the cluster's sessions by their id, or those of these; no reservation's."""
        query = (
            select(ledger, sessions.c.job_id.label("session_job"))
            .select_from(open_hold.join(ledger, ledger.c.id == open_hold.c.entry))
            .outerjoin(sessions, sessions.c.id == open_hold.c.session)
            .where(open_hold.c.cluster == self.cluster, ~ledger.c.key.startswith(SLOT_PREFIX))
            .order_by(open_hold.c.entry)
        )
        if sessions_only is not None:
            query = query.where(open_hold.c.session.in_(sessions_only))
        found: dict[str, OpenHold] = {}
        for row in self.run(query):
            values = dict(row._mapping)
            job = values.pop("session_job")
            held = found.get(values["session"])
            if held is None:
                entry = entry_of(values)
                found[entry.session] = OpenHold(entry, -entry.amount, entry.end, 0, job)
            else:
                amount = held.amount - values["amount"]
                # A hold about no time takes an extension back, and ends where the session ended before.
                end = max(held.end, values["end"]) if values["end"] > values["start"] else values["end"]
                found[values["session"]] = replace(held, amount=amount, end=end, extensions=held.extensions + 1)
        return found

    def held(self) -> list[HoldLine]:
        """Return all open holds of the cluster in brief, reservations' too: this is read at each admission."""
        columns = (ledger.c.account, ledger.c.user, ledger.c.session, ledger.c.amount, ledger.c.end, ledger.c.gpus)
        query = (
            select(*columns, sessions.c.job_id, ledger.c.key, ledger.c.start)
            .select_from(open_hold.join(ledger, ledger.c.id == open_hold.c.entry))
            .outerjoin(sessions, sessions.c.id == open_hold.c.session)
            .where(open_hold.c.cluster == self.cluster)
            .order_by(open_hold.c.entry)
        )
        found: list[HoldLine] = []
        slots: dict[str, HoldLine] = {}
        for account, user, session, amount, end, gpus, job, key, start in self.run(query):
            if key.startswith(SLOT_PREFIX):  # the newest entry tells its time
                before = slots[session].amount if session in slots else 0
                slots[session] = HoldLine(account, user, session, before - amount, end, 0, None, False, start, True)
                continue
            first = key == hold_key(session)
            count = sum(each.count for each in gpus_of(gpus)) if first else 0
            found.append(HoldLine(account, user, session, -amount, end, count, job, first, start))
        return [*found, *slots.values()]

    def charges(self, jobs: Collection[int]) -> list[Entry]:
        """Return the charges of these job ids, of every incarnation."""
        query = self._all().where(ledger.c.kind == Kind.CHARGE.value)
        return [each for some in chunks(jobs) for each in self._read(query.where(ledger.c.job_id.in_(some)))]

    def charges_ended(self, since: float, until: float, after: int = 0, most: int = 1000) -> list[Entry]:
        """Return charges of jobs whose time ended from ``since`` to before ``until``, by id, after an id."""
        of_jobs = ledger.c.job_id.is_not(None)  # what a reservation had and did not use is no job's
        where = (ledger.c.kind == Kind.CHARGE.value, ledger.c.end >= int(since), ledger.c.end < int(until))
        query = self._all().where(*where, of_jobs, ledger.c.id > after).order_by(ledger.c.id).limit(most)
        return self._read(query)

    def grants(self, account: str) -> list[Entry]:
        """Return what gives an account GPU time or takes it: grants and corrections about no time, oldest first."""
        # In this form the index on the account leads to them, past all that was used.
        gives = (ledger.c.kind.in_((Kind.GRANT.value, Kind.CORRECTION.value)), ledger.c.end == 0)
        query = self._all().where(ledger.c.account == account, *gives).order_by(ledger.c.at, ledger.c.id)
        return self._read(query)

    def expired(self, since: float, now: float) -> list[Entry]:
        """Return the credits of all accounts that expired after ``since`` and up to ``now``."""
        has_expiry = ledger.c.expires > literal_column("0")  # the words of the index, which holds no others
        query = self._all().where(has_expiry, ledger.c.kind == Kind.GRANT.value)
        query = query.where(ledger.c.expires > int(since), ledger.c.expires <= int(now))
        return self._read(query)

    def statement(self, which: Filter, before: int = 0, most: int = 50) -> list[Entry]:
        """Return a page of entries, newest first: those with an id below ``before`` (0 = from the newest)."""
        query = self._all()
        for column, value in (
            (ledger.c.account, which.account),
            (ledger.c.user, which.user),
            (ledger.c.session, which.session),
            (ledger.c.kind, which.kind.value if which.kind else ""),
        ):
            query = query.where(column == value) if value else query
        query = query.where(ledger.c.at >= which.since) if which.since else query
        query = query.where(ledger.c.at < which.until) if which.until else query
        query = query.where(ledger.c.id < before) if before else query
        return self._read(query.order_by(ledger.c.id.desc()).limit(most))

    def anomalies(
        self, *, settled: bool = False, kind: str = "", before: int = 0, most: int | None = None
    ) -> list[Anomaly]:
        """Return the anomalies that wait for a person, or those that do not, newest first.

        Args:
            kind: "" = of every kind. before: those with an id below it, 0 = from the newest. most: the default is all.
        """
        query = self._anomalies(settled).order_by(anomalies.c.id.desc()).limit(most)
        query = query.where(anomalies.c.kind == kind) if kind else query
        query = query.where(anomalies.c.id < before) if before else query
        return [Anomaly(**row._mapping) for row in self.run(query)]

    def anomalies_waiting(self, after: int = 0, most: int = 50) -> list[Anomaly]:
        """Return a page of the anomalies that wait for a person, oldest first: those with an id above ``after``."""
        query = self._anomalies(False).where(anomalies.c.id > after).order_by(anomalies.c.id).limit(most)
        return [Anomaly(**row._mapping) for row in self.run(query)]

    def count_waiting(self) -> int:
        """Return how many anomalies wait for a person."""
        return int(self.run(self._anomalies(False).with_only_columns(func.count())).scalar_one())

    def anomaly(self, id: int) -> Anomaly | None:
        """Return one anomaly, settled or not."""
        where = (anomalies.c.id == id, anomalies.c.cluster == self.cluster)
        return next((Anomaly(**row._mapping) for row in self.run(select(anomalies).where(*where))), None)

    def anomalies_of(self, keys: Collection[str]) -> dict[str, Anomaly]:
        """Return the anomalies of these keys, settled or not."""
        queries = (select(anomalies).where(anomalies.c.key.in_(some)) for some in chunks(keys))
        return {row.key: Anomaly(**row._mapping) for query in queries for row in self.run(query)}

    def anomalies_of_jobs(self, jobs: Collection[int]) -> list[Anomaly]:
        """Return the anomalies of these job ids, settled or not."""
        query = select(anomalies).where(anomalies.c.cluster == self.cluster)
        queries = (query.where(anomalies.c.job_id.in_(some)) for some in chunks(jobs))
        return [Anomaly(**row._mapping) for each in queries for row in self.run(each)]

    def note(self, name: str) -> Note | None:
        """Return the newest version of a note."""
        return next(iter(self.note_history(name, 1)), None)

    def note_history(self, name: str, most: int = 100) -> list[Note]:
        """Return the versions of a note, newest first."""
        where = (notes.c.cluster == self.cluster, notes.c.name == name)
        rows = self.run(select(notes).where(*where).order_by(notes.c.id.desc()).limit(most))
        return [Note(row.name, row.at, row.actor, row.value, row.id) for row in rows]

    def _anomalies(self, settled: bool) -> Select[Any]:
        is_settled = anomalies.c.settled > 0 if settled else anomalies.c.settled == 0
        return select(anomalies).where(anomalies.c.cluster == self.cluster, is_settled)

    def _all(self) -> Select[Any]:
        return select(ledger).where(ledger.c.cluster == self.cluster)

    def _of(self, whose: Subject) -> Select[Any]:
        query = self._all()
        if whose.account is not None:
            query = query.where(ledger.c.account == whose.account)
        if whose.users is not None:
            query = query.where(_is_in(ledger.c.user, whose.users))
        return query

    def _read(self, statement: Any) -> list[Entry]:
        return [entry_of(row._mapping) for row in self.run(statement)]

    def run(self, statement: Any, rows: Sequence[Mapping[str, Any]] | None = None) -> Any:
        """Run a statement of the store; with ``rows`` for each of them."""
        return self._connection.execute(statement, rows)


def _is_in(column: Any, values: frozenset[str]) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column == next(iter(values)) if len(values) == 1 else column.in_(sorted(values))
    return found
