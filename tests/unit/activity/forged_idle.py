"""A session that is idle, in a watch whose clock, server and policy are forged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from carme_hub.activity.idle.order import Order
from carme_hub.activity.idle_watch import IdleWatch, Surroundings
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.idle import IdleStore

ID = "5f0d8f0e-0000-4000-8000-000000000001"
START = 1_800_000_000
RULE = {"after": "30 min", "warn": ["10 min", "5 min"], "action": "stop", "still_here": 1}


class Lab:
    """A session that is idle from the start on, unless the test says otherwise; the test moves the clock."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.activity, self.events = ActivityStore(engine, "lab"), IdleStore(engine, "lab")
        self.now, self.reported = float(START), START
        self.policy: dict[str, Any] = {"idle": [RULE]}
        self.companions, self.cancelled = 0, []  # type: ignore[var-annotated]
        self.asked: list[str] = []
        self.order: Order | None = Order(kernels=1)
        self.on_order: Callable[[], None] = lambda: None
        request = Request("a100", "base", Gpus("a100", 1), account="physics")
        self.session = Session(
            ID, "lab", "alice", "", request, SessionState.RUNNING, float(START), node="n1", started=float(START)
        )
        self.watch = self.new_watch()

    def new_watch(self) -> IdleWatch:
        """Return the watch of a hub that has just started."""
        hub = Surroundings(
            policy=lambda: parse_policy(self.policy),
            sessions=lambda: [self.session] if ID not in dict(self.cancelled) else [],
            companions=lambda _id: self.companions,
            person=lambda user: Person(user, frozenset({"course"}), frozenset()),
            cancel=self._cancel,
            put_in_order=self._put_in_order,
            clock=lambda: self.now,
        )
        return IdleWatch(self.activity, self.events, hub, logging.getLogger("test"))

    async def _cancel(self, id: str, reason: str) -> None:
        self.cancelled.append((id, reason))

    async def _put_in_order(self, _session: Session, key: str) -> Order | None:
        self.asked.append(key)
        self.on_order()
        return self.order

    async def run(self, minutes: int, **changes: Any) -> None:
        """Let so many minutes pass, with a report and a look in each."""
        for _ in range(minutes):
            self.now += 60
            self.report(**changes)
            await self.watch.look()
            await self.watch.ends.wait()

    def report(self, **changes: Any) -> None:
        """Store the next minute of the session, with changes."""
        quiet = Minute(self.reported, 60, 1.0, gpus=(GpuMinute(0.0),), kernels=0, terminals=0, runs=0)
        self.activity.record([Report(ID, "n1", (replace(quiet, **changes),))])
        self.reported += 60

    def kinds(self) -> list[tuple[str, int]]:
        return [(event.kind, round((event.at - START) / 60)) for event in self.events.of([ID]).get(ID, [])]

    @property
    def state(self) -> str:
        return self.watch.states[ID].state.state
