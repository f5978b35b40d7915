"""A session's past, forged so that it was idle: a rule takes ten minutes at least, and a test has not so many.

What is forged is the stored minutes before now (all idle), and the times of the hub's events, which are moved back.
Everything from then on is as it happens.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.sandbox.demo import DEFAULT_POLICY
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.engine import CarmeStore

from .hub import Hub, wait_for
from .truth import Row

#: CPUs of a machine that runs other tests beside are seldom quiet.
RULE = {"after": "10 min", "warn": ["4 min", "2 min"], "cpu_below": 60, "action": "stop", "still_here": 1}
QUIET = {"cpu": 1.0, "gpus": (GpuMinute(0.0),), "kernels": 0, "terminals": 0, "runs": 0}


def in_force(hub: Hub, **changes: Any) -> None:
    """Have the hub's policy stop idle sessions."""
    hub.demo.set_policy({**DEFAULT_POLICY, "idle": [{**RULE, **changes}]})


def not_in_force(hub: Hub) -> None:
    """Have the hub's policy stop none."""
    hub.demo.set_policy(DEFAULT_POLICY)


class IdlePast:
    """The past of one session, in the hub's database."""

    def __init__(self, hub: Hub, row: Row) -> None:
        self.hub, self.row, self.id = hub, row, row.id

    @property
    def database(self) -> Path:
        """The hub's database."""
        return self.hub.demo.folder / "carme-hub.sqlite"

    def state(self) -> dict[str, Any]:
        """Return what the hub says of its idleness."""
        answer = self.hub.api("GET", f"/carme/sessions/{self.id}")
        assert answer.status == 200, answer
        return dict(answer.body["idle"])

    def wait_state(self, limit: float, *wanted: str) -> dict[str, Any]:
        """Wait until the hub says one of these states, and return it."""
        seen: dict[str, Any] = {}

        def is_there() -> bool:
            seen.update(self.state())
            return seen["state"] in wanted

        wait_for(is_there, limit, f"{wanted}, not {seen}")
        return seen

    def minutes(self) -> list[Minute]:
        """Return the stored minutes of the last hour."""
        with self._activity() as activity:
            found = activity.minutes([self.id], time.time() - 3600)
        return list(found.get(self.id, {}).get(self.row.node, ()))

    def forge_minutes(self) -> None:
        """Have it idle for twenty minutes, as the service would have stored it."""
        wait_for(lambda: any(minute.kernels == 0 for minute in self.minutes()), 200, "a minute without work")
        newest = self.minutes()[-1].at
        self.sql("DELETE FROM activity_hour WHERE session = ?", self.id)
        past = tuple(Minute(newest - 60 * ago, 60, **QUIET) for ago in range(20, -1, -1))  # type: ignore[arg-type]
        with self._activity() as activity:
            activity.record([Report(self.id, self.row.node, past)])

    def move_events_back(self, seconds: int) -> None:
        """Have what the hub noted of it be longer ago."""
        self.sql("UPDATE idle_event SET at = at - ? WHERE session = ?", seconds, self.id)

    def events(self) -> list[str]:
        """Return the kinds of what the hub noted of it."""
        rows = self.sql("SELECT kind FROM idle_event WHERE session = ? ORDER BY at, id", self.id)
        return [str(kind) for (kind,) in rows]

    def given_back(self) -> float:
        """Return the GPU-hours that were held for it and not used, by the ledger."""
        entries = self.sql("SELECT kind, amount FROM ledger WHERE session = ?", self.id)
        sums = {kind: sum(amount for each, amount in entries if each == kind) for kind, _ in entries}
        assert sums["hold"] < 0
        assert sums["release"] == -sums["hold"]
        return float(-sums["hold"] + sums["charge"]) / 3_600_000

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a statement."""
        # Closed at once: a hub that is killed and started again makes new files beside the database, and connections
        # of one process share those that the first of them has opened.
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _activity(self) -> Iterator[ActivityStore]:
        engine = CarmeStore(url=f"sqlite:///{self.database}").open()
        try:
            cluster = str(self.sql("SELECT cluster FROM session WHERE id = ?", self.id)[0][0])
            yield ActivityStore(engine, cluster)
        finally:
            engine.dispose()
