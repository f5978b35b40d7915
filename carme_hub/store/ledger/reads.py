"""Queries of the ledger within one transaction. Amounts are integers in milli-GPU-seconds.

Entries with an end are usage: charges, their refunds, and corrections with a period. Grants and corrections without a
period are the amounts that may be used. ``carme_hub.accounting`` calls this.
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
    """Selects entries of an account, or of users, or with both values the entries that match both."""

    account: str | None = None
    users: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class UsedAmount:
    """Usage within a window, as a positive number, and the end of its oldest entry (0 = no usage)."""

    amount: int = 0
    oldest: int = 0


@dataclass(frozen=True, slots=True)
class OpenHold:
    """All holds of one session that no release has closed, combined.

    Attributes:
        entry: the first of them. amount: their sum, a positive number. end: of the last one.
        extensions: the number of extensions.
        job_id: the session's job in its row; 0 = not yet known, None = no row (yet).
    """

    entry: Entry
    amount: int
    end: float
    extensions: int = 0
    job_id: int | None = None

    @property
    def user(self) -> str:
        """Return the session's user."""
        return self.entry.user

    @property
    def seconds(self) -> int:
        """Return how long the GPUs are held."""
        return int(self.end - self.entry.start)


@dataclass(frozen=True, slots=True)
class HoldLine:
    """The values of an open hold that quotas need; each extension is a line of its own.

    The holds of a reservation are one line, whose ``session`` is the reservation's id.

    Attributes:
        amount: a positive number. gpus: their number; 0 for an extension or a reservation. job_id: as in ``OpenHold``.
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
    """Which entries a statement shows; "" and 0 = all. ``since`` and ``until`` refer to the time of writing."""

    account: str = ""
    user: str = ""
    session: str = ""
    kind: Kind | None = None
    since: float = 0.0
    until: float = 0.0


class LedgerReads:
    """Queries of one cluster's entries, all answered from one moment of the database."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self.cluster = cluster

    def entries(self, keys: Collection[str]) -> dict[str, Entry]:
        """Return the existing entries among these keys."""
        found = (each for some in chunks(keys) for each in self._read(select(ledger).where(ledger.c.key.in_(some))))
        return {entry.key: entry for entry in found}

    def of_session(self, session: str) -> list[Entry]:
        """Return every entry of a session, oldest first."""
        where = (ledger.c.session == session, ledger.c.cluster == self.cluster)
        return self._read(select(ledger).where(*where).order_by(ledger.c.id))

    def balances(self, accounts: Collection[str] | None = None) -> dict[str, Balance]:
        """Return the balances of these accounts, or of all accounts with entries."""
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

    def used(self, whose: Subject, since: float = 0, until: float | None = None) -> UsedAmount:
        """Return the usage from ``since`` to ``until`` (epoch seconds; by default without an end).

        An entry that crosses an edge counts by its part inside. An amount is seconds × an integer rate, so parts are
        integers, too.
        """
        since, start, end, amount = int(since), ledger.c.start, ledger.c.end, ledger.c.amount
        query = self._of(whose).where(_USED, end > since)
        inside: ColumnElement[bool] = start >= since
        first: ColumnElement[int] = case((start < since, since), else_=start)
        last: ColumnElement[int] = end
        if until is not None:
            until = int(until)
            # An entry at a single moment (a correction) belongs to the window that ends then.
            query = query.where(or_(start < until, and_(start == until, end == until)))
            inside = and_(inside, end <= until)
            last = case((end > until, until), else_=end)
        part: ColumnElement[int] = amount
        if since or until is not None:
            part = case((inside, amount), else_=amount // (end - start) * (last - first))
        total, oldest = self.run(query.with_only_columns(func.sum(part), func.min(end))).one()
        return UsedAmount(-int(total or 0), int(oldest or 0))

    def last_use(self, whose: Subject) -> int:
        """Return the end of the newest usage, 0 = none: no later window has any usage."""
        ends = (
            self._of(whose).where(ledger.c.kind == kind.value).with_only_columns(func.max(ledger.c.end))
            for kind in (Kind.CHARGE, Kind.CORRECTION)
        )
        # A query for a single kind finds the answer at the end of the index.
        return max(int(end or 0) for end in self.run(select(*(each.scalar_subquery() for each in ends))).one())

    def oldest_uses(self, whose: Subject, since: float, most: int = 100) -> list[tuple[int, int, int]]:
        """Return (start, end, positive amount) of usage since a time, the oldest end first."""
        query = self._of(whose).where(_USED, ledger.c.end > int(since)).order_by(ledger.c.end).limit(most)
        columns = (ledger.c.start, ledger.c.end, -ledger.c.amount)
        return [(start, end, amount) for start, end, amount in self.run(query.with_only_columns(*columns))]

    def draws(self, account: str) -> list[tuple[int, int]]:
        """Return (epoch second, amount) of all usage of an account, at the start of its hold, or else of its job."""
        hold = ledger.alias("hold")
        when = func.coalesce(hold.c.start, ledger.c.start).label("when")
        query = (
            select(when, func.sum(ledger.c.amount))
            .select_from(ledger.outerjoin(hold, hold.c.key == literal(hold_key("")) + ledger.c.session))
            .where(ledger.c.cluster == self.cluster, ledger.c.account == account, _USED, ledger.c.end > 0)
        )
        return [(time, -int(amount)) for time, amount in self.run(query.group_by(when))]

    def started(self, whose: Subject, since: float) -> tuple[float, ...]:
        """Return when each session was admitted since a time, including ended ones."""
        # A hold ends after it begins, so the index on the end narrows this down.
        query = self._of(whose).where(
            ledger.c.kind == Kind.HOLD.value,
            ledger.c.end >= int(since),
            ledger.c.at > since,
            ledger.c.key == literal(hold_key("")) + ledger.c.session,  # the first hold, not an extension
        )
        return tuple(sorted(row.at for row in self.run(query.with_only_columns(ledger.c.at))))

    def open_holds(self, sessions_only: Collection[str] | None = None) -> dict[str, OpenHold]:
        """Return the open holds of the cluster's sessions, or of these, by session id; without reservations."""
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
                # A hold without a period undoes an extension, and ends at the session's previous end.
                end = max(held.end, values["end"]) if values["end"] > values["start"] else values["end"]
                found[values["session"]] = replace(held, amount=amount, end=end, extensions=held.extensions + 1)
        return found

    def held(self) -> list[HoldLine]:
        """Return all open holds of the cluster, including reservations, with few columns: each admission reads them."""
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
            if key.startswith(SLOT_PREFIX):  # the newest entry has the current period
                before = slots[session].amount if session in slots else 0
                slots[session] = HoldLine(account, user, session, before - amount, end, 0, None, False, start, True)
                continue
            first = key == hold_key(session)
            count = sum(each.count for each in gpus_of(gpus)) if first else 0
            found.append(HoldLine(account, user, session, -amount, end, count, job, first, start))
        return [*found, *slots.values()]

    def charges(self, jobs: Collection[int]) -> list[Entry]:
        """Return the charges of these job ids, for every incarnation."""
        query = self._all().where(ledger.c.kind == Kind.CHARGE.value)
        return [each for some in chunks(jobs) for each in self._read(query.where(ledger.c.job_id.in_(some)))]

    def charges_ended(self, since: float, until: float, after: int = 0, most: int = 1000) -> list[Entry]:
        """Return charges of jobs that ended from ``since`` to before ``until``, by id, after an id."""
        of_jobs = ledger.c.job_id.is_not(None)  # the charge for unused time of a reservation has no job
        where = (ledger.c.kind == Kind.CHARGE.value, ledger.c.end >= int(since), ledger.c.end < int(until))
        query = self._all().where(*where, of_jobs, ledger.c.id > after).order_by(ledger.c.id).limit(most)
        return self._read(query)

    def grants(self, account: str) -> list[Entry]:
        """Return an account's grants and its corrections without a period, oldest first."""
        # In this form the index on the account finds them without reading the usage.
        gives = (ledger.c.kind.in_((Kind.GRANT.value, Kind.CORRECTION.value)), ledger.c.end == 0)
        query = self._all().where(ledger.c.account == account, *gives).order_by(ledger.c.at, ledger.c.id)
        return self._read(query)

    def expired(self, since: float, now: float) -> list[Entry]:
        """Return the credits of all accounts that expired after ``since`` and up to ``now``."""
        has_expiry = ledger.c.expires > literal_column("0")  # the exact condition of the partial index
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
        """Return the open anomalies, or the settled ones, newest first.

        Args:
            kind: "" = all kinds. before: ids below it, 0 = from the newest. most: by default all.
        """
        query = self._anomalies(settled).order_by(anomalies.c.id.desc()).limit(most)
        query = query.where(anomalies.c.kind == kind) if kind else query
        query = query.where(anomalies.c.id < before) if before else query
        return [Anomaly(**row._mapping) for row in self.run(query)]

    def anomalies_waiting(self, after: int = 0, most: int = 50) -> list[Anomaly]:
        """Return a page of the open anomalies, oldest first, with ids above ``after``."""
        query = self._anomalies(False).where(anomalies.c.id > after).order_by(anomalies.c.id).limit(most)
        return [Anomaly(**row._mapping) for row in self.run(query)]

    def count_waiting(self) -> int:
        """Return the number of open anomalies."""
        return int(self.run(self._anomalies(False).with_only_columns(func.count())).scalar_one())

    def anomaly(self, id: int) -> Anomaly | None:
        """Return one anomaly, open or settled."""
        where = (anomalies.c.id == id, anomalies.c.cluster == self.cluster)
        return next((Anomaly(**row._mapping) for row in self.run(select(anomalies).where(*where))), None)

    def anomalies_of(self, keys: Collection[str]) -> dict[str, Anomaly]:
        """Return the anomalies with these keys, open or settled."""
        queries = (select(anomalies).where(anomalies.c.key.in_(some)) for some in chunks(keys))
        return {row.key: Anomaly(**row._mapping) for query in queries for row in self.run(query)}

    def anomalies_of_jobs(self, jobs: Collection[int]) -> list[Anomaly]:
        """Return the anomalies of these job ids, open or settled."""
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
        """Run a statement; with ``rows``, once for each of them."""
        return self._connection.execute(statement, rows)


def _is_in(column: Any, values: frozenset[str]) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column == next(iter(values)) if len(values) == 1 else column.in_(sorted(values))
    return found
