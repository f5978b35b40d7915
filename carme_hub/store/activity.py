"""What jobs use, in hours with their minutes and in sums. Synchronous, called in a thread.

The ``activity`` service is the only writer; the hub reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, tuple_, update
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.activity.evidence import pack, unpack
from carme_hub.domain.activity.minutes import (
    HOUR,
    Minute,
    Total,
    add,
    minute_from_json,
    minute_to_json,
    new_minutes,
    total,
    total_from_json,
    total_to_json,
)
from carme_hub.errors import StoreError

from .engine import READ_ONLY, chunks
from .tables import activity_hour as hours
from .tables import activity_job as jobs

#: Rows that one transaction of ``prune`` changes, so that no other writer waits long.
PRUNE_ROWS = 2000


@dataclass(frozen=True, slots=True)
class Report:
    """Minutes of one session on one node. ``about``: what the reporter says of the node and the GPUs."""

    session: str
    node: str
    minutes: tuple[Minute, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a session used on one node until ``at``, the end of its last minute, UTC epoch seconds."""

    session: str
    node: str
    at: int
    about: Mapping[str, Any]
    total: Total


class ActivityStore:
    """What the jobs of one cluster use. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def record(self, reports: Sequence[Report]) -> None:
        """Store minutes in one transaction. A minute that is there already is counted once."""
        try:
            with self._engine.begin() as connection:
                for _, some in groupby(sorted(reports, key=_place), key=_place):
                    self._record(connection, list(some))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take what jobs use: {error}") from error

    def _record(self, connection: Connection, reports: list[Report]) -> None:
        """Store the minutes of one session on one node."""
        session, node = reports[0].session, reports[0].node
        sent = [minute for report in reports for minute in report.minutes]
        if not sent:
            return
        here = (jobs.c.session == session, jobs.c.node == node)
        row = connection.execute(select(jobs.c.at, jobs.c.total).where(*here)).one_or_none()
        whole = total_from_json(row.total) if row is not None else Total()
        for hour, some in groupby(sorted(sent, key=lambda minute: minute.at), key=_hour_of):
            whole = add(whole, self._record_hour(connection, session, node, hour, list(some)))
        at = max(minute.at + minute.seconds for minute in sent)
        values = {"about": dict(reports[-1].about), "total": total_to_json(whole)}
        if row is None:
            key = {"session": session, "node": node, "cluster": self._cluster}
            connection.execute(insert(jobs).values(**key, at=at, **values))
        else:
            connection.execute(update(jobs).where(*here).values(at=max(at, row.at), **values))

    def _record_hour(self, connection: Connection, session: str, node: str, hour: int, sent: list[Minute]) -> Total:
        """Store minutes of one hour, and return what they add to the job's sum."""
        here = (hours.c.session == session, hours.c.node == node, hours.c.hour == hour)
        row = connection.execute(select(hours.c.minutes).where(*here)).one_or_none()
        stored = [minute_from_json(each) for each in (row.minutes or ())] if row is not None else []
        new = new_minutes(stored, sent)
        minutes = sorted((*stored, *new), key=lambda minute: minute.at)
        values: dict[str, Any] = {"minutes": [minute_to_json(minute) for minute in minutes]}
        values |= {"total": total_to_json(total(minutes)), "evidence": pack(minutes, hour)}
        if row is None:
            key = {"session": session, "node": node, "hour": hour, "cluster": self._cluster}
            connection.execute(insert(hours).values(**key, **values))
        elif new:
            connection.execute(update(hours).where(*here).values(**values))
        return total(new)

    def nodes(self, session: str) -> list[str]:
        """Return the nodes from which a session has reported."""
        return [row.node for row in self._read(select(jobs.c.node).where(jobs.c.session == session))]

    def minutes(self, sessions: Collection[str], since: float) -> dict[str, dict[str, tuple[Minute, ...]]]:
        """Return the minutes of sessions from a time on, by session and node, in order; as long as they are kept."""
        found: dict[str, dict[str, tuple[Minute, ...]]] = {}
        for some in chunks(sessions):
            where = (hours.c.session.in_(some), hours.c.hour > since - HOUR, hours.c.minutes.is_not(None))
            columns = (hours.c.session, hours.c.node, hours.c.minutes)
            for row in self._read(select(*columns).where(*where).order_by(hours.c.hour)):
                kept = tuple(minute for minute in map(minute_from_json, row.minutes) if minute.at >= since)
                if kept:
                    nodes = found.setdefault(row.session, {})
                    nodes[row.node] = (*nodes.get(row.node, ()), *kept)
        return found

    def evidence(self, sessions: Collection[str], since: float) -> dict[str, dict[str, list[Minute]]]:
        """Return what says whether sessions were idle from a time on, by session and node, as long as hours last."""
        found: dict[str, dict[str, list[Minute]]] = {}
        for some in chunks(sessions):
            where = (hours.c.session.in_(some), hours.c.hour > since - HOUR, hours.c.evidence.is_not(None))
            columns = (hours.c.session, hours.c.node, hours.c.hour, hours.c.evidence)
            for row in self._read(select(*columns).where(*where).order_by(hours.c.hour)):
                minutes = [minute for minute in unpack(row.evidence, int(row.hour)) if minute.at >= since]
                found.setdefault(row.session, {}).setdefault(row.node, []).extend(minutes)
        return found

    def hours(self, session: str, since: float = 0.0) -> dict[str, list[tuple[int, Total]]]:
        """Return the sums of the hours of a session from a time on, by node, with the beginning of each hour."""
        where = (hours.c.session == session, hours.c.hour > since - HOUR)
        columns = (hours.c.node, hours.c.hour, hours.c.total)
        found: dict[str, list[tuple[int, Total]]] = {}
        for row in self._read(select(*columns).where(*where).order_by(hours.c.hour)):
            found.setdefault(row.node, []).append((int(row.hour), total_from_json(row.total)))
        return found

    def jobs(self, sessions: Collection[str]) -> list[JobUse]:
        """Return what sessions used in all, a row for each node."""
        return [use for some in chunks(sessions) for use in self._uses(select(jobs).where(jobs.c.session.in_(some)))]

    def newest(self, sessions: Collection[str]) -> dict[tuple[str, str], int]:
        """Return the end of the last minute of sessions, by session and node; without those that have none."""
        ends = select(jobs.c.session, jobs.c.node, jobs.c.at)
        rows = [row for some in chunks(sessions) for row in self._read(ends.where(jobs.c.session.in_(some)))]
        return {(row.session, row.node): int(row.at) for row in rows}

    def reporting_since(self, since: float) -> list[JobUse]:
        """Return what the sessions used whose last minute ended after a time."""
        return self._uses(select(jobs).where(jobs.c.cluster == self._cluster, jobs.c.at >= since))

    def prune(self, minutes_before: float, hours_before: float) -> int:
        """Drop the minutes of hours that began before a time, and hours from before another; return how many."""
        old = (hours.c.cluster == self._cluster, hours.c.hour < minutes_before, hours.c.minutes.is_not(None))
        older = (hours.c.cluster == self._cluster, hours.c.hour < hours_before)
        return self._prune(old, update(hours).values(minutes=None)) + self._prune(older, delete(hours))

    def _prune(self, where: Iterable[Any], change: Any) -> int:
        """Apply a change to all rows of a condition, some at a time."""
        keys = (hours.c.session, hours.c.node, hours.c.hour)
        count = 0
        while True:
            found = [tuple(row) for row in self._read(select(*keys).where(*where).limit(PRUNE_ROWS))]
            if not found:
                return count
            try:
                with self._engine.begin() as connection:
                    connection.execute(change.where(tuple_(*keys).in_(found)))
            except SQLAlchemyError as error:
                raise StoreError(f"Old use of jobs is not deleted: {error}") from error
            count += len(found)

    def _uses(self, statement: Any) -> list[JobUse]:
        return [
            JobUse(row.session, row.node, int(row.at), dict(row.about), total_from_json(row.total))
            for row in self._read(statement)
        ]

    def _read(self, statement: Any) -> list[Any]:
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return list(connection.execute(statement))
        except SQLAlchemyError as error:
            raise StoreError(f"What jobs use cannot be read: {error}") from error


def _place(report: Report) -> tuple[str, str]:
    return report.session, report.node


def _hour_of(minute: Minute) -> int:
    return minute.at // HOUR * HOUR
