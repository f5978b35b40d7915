"""What sessions copy to and from their nodes, as the nodes report it. Synchronous, called in a thread by the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, Row, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.staging.progress import ENDED, Report, StageState, report_of
from carme_hub.errors import StoreError
from carme_hub.store.engine import READ_ONLY
from carme_hub.store.tables import staging as table

#: Rows of one user that are stored; older ones go, except those whose results are still on a node.
MOST_ROWS = 200
#: States that nothing follows.
_FINAL = tuple(sorted(each.value for each in ENDED))


@dataclass(frozen=True, slots=True)
class Staging:
    """The copies of one session or companion. Times are UTC epoch seconds; ``report`` is None before the first one.

    Attributes:
        node: which reported last. stage: the request's part (``domain.staging.entries.stage_of``).
        report: of all nodes together. nodes: the newest of each.
        decision: {"do": "retry" | "discard", "out": [entries], "nodes": [names]}, {} for none.
    """

    session: str
    user: str
    state: StageState
    node: str
    created: float
    at: float
    nonce_hash: str
    stage: Mapping[str, Any]
    report: Report | None
    decision: Mapping[str, Any]
    nodes: Mapping[str, Report] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Return the nodes that have results still, or else the one that reported last."""
        kept = [name for name, each in self.nodes.items() if each.state is StageState.KEPT]
        left = kept or [name for name, each in self.nodes.items() if each.state not in ENDED]
        return ", ".join(sorted(filter(None, left))) or self.node


class StagingStore:
    """The table of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def add(self, session: str, user: str, stage: Mapping[str, Any], nonce_hash: str, created: float) -> None:
        """Add a session that has data to copy."""
        row: dict[str, Any] = {
            "session": session,
            "cluster": self._cluster,
            "user": user,
            "state": StageState.WAITING.value,
        }
        row |= {"node": "", "created": created, "at": 0.0, "nonce_hash": nonce_hash, "stage": dict(stage)}
        mine = (table.c.cluster == self._cluster, table.c.user == user)
        newest = select(table.c.session).where(*mine, table.c.state.in_(_FINAL)).order_by(table.c.created.desc())
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(table).values(**row, report={}, decision={}))
                for (old,) in connection.execute(newest).all()[MOST_ROWS:]:
                    connection.execute(delete(table).where(table.c.session == old))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take what session {session} copies: {error}") from error

    def get(self, session: str) -> Staging | None:
        """Return the copies of a session, None where it has none."""
        found = self._read(select(table).where(table.c.session == session, table.c.cluster == self._cluster))
        return found[0] if found else None

    def of(self, user: str, most: int = 50) -> list[Staging]:
        """Return those of a user, the newest first."""
        where = (table.c.cluster == self._cluster, table.c.user == user)
        return self._read(select(table).where(*where).order_by(table.c.created.desc()).limit(most))

    def kept(self, user: str = "") -> list[Staging]:
        """Return those whose results are still on a node, of one user or of all, the oldest first."""
        where = [table.c.cluster == self._cluster, table.c.state == StageState.KEPT.value]
        where += [table.c.user == user] if user else []
        return self._read(select(table).where(*where).order_by(table.c.created))

    def put_report(self, new: Staging) -> None:
        """Store the report of what has one, in place of the one before, and the decision."""
        if new.report is None:
            return
        report = new.report.as_json()
        if len(new.nodes) > 1:
            report["nodes"] = {name: each.as_json() for name, each in new.nodes.items()}
        values = {"report": report, "state": new.report.state.value, "at": new.at, "node": new.node}
        self._update(new.session, values | {"decision": dict(new.decision)})

    def decide(self, session: str, decision: Mapping[str, Any]) -> None:
        """Store what is to be done with results that are still on the node."""
        self._update(session, {"decision": dict(decision)})

    def _update(self, session: str, values: Mapping[str, Any]) -> None:
        try:
            with self._engine.begin() as connection:
                connection.execute(update(table).where(table.c.session == session).values(**values))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take what session {session} copies: {error}") from error

    def _read(self, query: Any) -> list[Staging]:
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return [_from_row(row) for row in connection.execute(query)]
        except (SQLAlchemyError, ValueError) as error:
            raise StoreError(f"What sessions copy cannot be read: {error}") from error


def _from_row(row: Row[Any]) -> Staging:
    values = dict(row._mapping)
    values.pop("cluster")
    stored = values["report"]
    values["report"] = report_of(stored) if stored else None
    if stored:
        nodes = stored.get("nodes") or {values["node"]: stored}
        values["nodes"] = {name: report_of(each) for name, each in nodes.items()}
    return Staging(**{**values, "state": StageState(values["state"])})
