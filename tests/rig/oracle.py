"""The oracle checks every 2 s, during every fault test, whether the invariants of RELIABILITY hold.

It compares squeue and ``sacct -D`` of the real Slurm, the hub's API, the proxy's routes and both databases. A source
that does not answer proves nothing, and restarts the clocks of the checks that need it. A suspicion becomes a violation
when it lasts longer than the promise allows; the clocks do not run while a test injects a fault (``fault``).

1. A session reported as running has exactly one live job with its id.           60 s (truth), two at once: never
2. A live job with our prefix has exactly one session.                            120 s after the fault heals
3. Holds plus used never exceed the budget;                                       never
   a live job with GPUs has a hold.                                               60 s
5. No two reservations share a GPU and a moment, in our database or in Slurm.     never
6. A route points at the server that proved itself for that session.              60 s
7. A valid server token belongs to a session that has not ended.                  60 s
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from .budgets import BudgetReport
from .slots import Claim, Nodes, overlaps
from .truth import QueuedJob, Record, Row, Truth

EVERY = 2.0
TRUTH, ORPHAN, NEVER = 60.0, 120.0, 0.0


@dataclass(frozen=True)
class Suspicion:
    """A state that must not last: the invariant, its subject, and how long it may last."""

    invariant: int
    about: str
    text: str
    allowed: float


@dataclass(frozen=True)
class Violation:
    """A broken promise; ``at``: seconds since the oracle started; ``lasted``: seconds of the broken state."""

    at: float
    lasted: float
    suspicion: Suspicion

    def __str__(self) -> str:
        what = self.suspicion
        return f"{self.at:6.1f} s: invariant {what.invariant} ({what.about}) for {self.lasted:.0f} s: {what.text}"


class Oracle:
    """Watches one hub from its own thread; ``with Oracle(Truth(hub)) as oracle: …``."""

    def __init__(self, truth: Truth, clock: Callable[[], float] = time.monotonic) -> None:
        self.truth = truth
        self._clock = clock
        self.violations: list[Violation] = []
        self.checks = 0
        self.unanswered: dict[str, int] = {}
        self._known_before: set[str] = set()
        self._suspicions: dict[tuple[int, str], tuple[float, Suspicion]] = {}
        self._begun = self._clock()
        self._faults = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="oracle", daemon=True)

    def __enter__(self) -> Oracle:
        # Sessions of earlier tests in the databases are not checked.
        self._known_before = {row.id for row in self.truth.rows_now()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)

    @contextlib.contextmanager
    def fault(self) -> Iterator[None]:
        """Mark a fault: the allowed times count from its end."""
        with self._lock:
            self._faults += 1
        try:
            yield
        finally:
            with self._lock:
                self._faults -= 1
                now = self._clock()
                self._suspicions = {key: (now, s) for key, (_, s) in self._suspicions.items()}

    def settle(self, within: float = ORPHAN + TRUTH) -> None:
        """Wait until there is no suspicion, then compare with accounting; fail on any violation."""
        deadline = self._clock() + within
        clear_since = self.checks
        while self._clock() < deadline and not self.violations:
            with self._lock:
                if self._suspicions:
                    clear_since = self.checks
                elif self.checks >= clear_since + 2:
                    break
            time.sleep(0.2)
        self._compare_with_accounting()
        assert not self.violations, "Violations:\n" + "\n".join(str(v) for v in self.violations)
        assert not self._suspicions, f"Not settled within {within:.0f} s: {[s for _, s in self._suspicions.values()]}"
        assert self.checks > sum(self.unanswered.values()) / 6, f"Too many sources did not answer: {self.unanswered}"

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._end.is_set():
            started = self._clock()
            self.look()
            self._end.wait(max(0.1, started + EVERY - self._clock()))

    def look(self) -> None:
        """Check all invariants once."""
        truth = self.truth
        # The order matters: the hub's claims come before the facts, so a change in between can look like a wrong claim;
        # every suspicion whose limit is not NEVER may last for a while.
        sources: dict[str, Any] = {
            "hub": truth.servers(),
            "routes": truth.routes(),
            "tokens": truth.tokens(),
            "queue": (queue := truth.queue()),
            "rows": truth.rows(),
            "books": truth.budgets(),
            "booked": truth.booked(),
            # A controller that did not answer would only cause another timeout.
            "reserved": None if queue is None else truth.reserved(),
            "gpus": None if queue is None else truth.gpus(),
        }
        found: list[Suspicion] = []
        judged: set[int] = set()
        for invariant, needs, check in (
            (1, ("hub", "queue", "rows"), self._running),
            (2, ("queue", "rows"), self._jobs),
            (3, ("queue", "books"), self._budgets),
            (5, ("booked", "gpus"), partial(self._slots, "our database")),
            (5, ("reserved", "gpus"), partial(self._slots, "Slurm")),
            (6, ("routes", "rows"), self._routes),
            (7, ("tokens", "rows"), self._tokens),
        ):
            if all(sources[name] is not None for name in needs):
                judged.add(invariant)
                found += check(*(sources[name] for name in needs))
        now = self._clock()
        with self._lock:
            self.checks += 1
            for name, value in sources.items():
                self.unanswered[name] = self.unanswered.get(name, 0) + (value is None)
            self._update_violations(now, found)

    def _update_violations(self, now: float, found: list[Suspicion]) -> None:
        before, self._suspicions = self._suspicions, {}
        for suspicion in found:
            key = (suspicion.invariant, suspicion.about)
            since = before.get(key, (now, suspicion))[0]
            if suspicion.allowed > NEVER and self._faults:
                since = now
            said = any(v.suspicion.about == suspicion.about for v in self.violations)
            if now - since >= suspicion.allowed and not said:
                self.violations.append(Violation(now - self._begun, now - since, suspicion))
            self._suspicions[key] = (since, suspicion)

    # -- the invariants -----------------------------------------------------------------------------------------------

    def _running(
        self, servers: dict[tuple[str, str], Any], queue: list[QueuedJob], rows: list[Row]
    ) -> Iterator[Suspicion]:
        """1, and S9: the hub reports the true state of each server."""
        live = _live_by_session(queue)
        for id, jobs in live.items():
            if len(jobs) > 1:
                yield Suspicion(1, id, f"has {len(jobs)} live jobs: {[j.id for j in jobs]}", NEVER)
        for (user, name), model in servers.items():
            row = _newest(rows, user, name)
            if row is None:
                if model["ready"]:
                    yield Suspicion(1, f"{user}/{name}", "is said to be ready and never had a session", TRUTH)
            elif model["ready"] and not live.get(row.id):
                yield Suspicion(1, row.id, f"{user}/{name} is said to be ready; no live job ({row.state})", TRUTH)
        for row in rows:
            if row.state == "running" and not row.leaving and not live.get(row.id):
                yield Suspicion(1, f"row {row.id}", "is running in our database and has no live job", TRUTH)
            is_alive = row.open and not row.leaving and live.get(row.id)
            if is_alive and (row.user, row.server_name) not in servers:
                yield Suspicion(1, f"hidden {row.id}", f"of {row.user} lives and the hub says there is none", TRUTH)

    def _jobs(self, queue: list[QueuedJob], rows: list[Row]) -> Iterator[Suspicion]:
        """2: each of our live jobs has exactly one session, which has not ended; and a server has one at most."""
        sessions = {row.id: row for row in rows}
        servers: dict[tuple[str, str], list[str]] = {}
        for id, jobs in _live_by_session(queue).items():
            row = sessions.get(id)
            if row is None:
                yield Suspicion(2, id, f"job {jobs[0].id} of {jobs[0].user} has no session", ORPHAN)
            elif not row.open or row.user != jobs[0].user:
                yield Suspicion(2, id, f"job {jobs[0].id} lives, its session has ended: {row.end_reason}", ORPHAN)
            elif not row.parent:
                servers.setdefault((row.user, row.server_name), []).append(id)
            elif row.parent not in sessions or not sessions[row.parent].open:
                yield Suspicion(2, id, f"job {jobs[0].id} lives, the session that it is for has ended", ORPHAN)
        for (user, name), ids in servers.items():
            if len(ids) > 1:
                yield Suspicion(2, f"{user}/{name}", f"has live jobs of {len(ids)} sessions", ORPHAN)

    def _budgets(self, queue: list[QueuedJob], books: BudgetReport) -> Iterator[Suspicion]:
        """3: used plus held exceeds no budget, and no job with GPUs runs without a hold."""
        for budget in books.budgets:
            if budget.exceeded:
                yield Suspicion(3, budget.about, str(budget), NEVER)
        for id, jobs in _live_by_session(queue).items():
            if id in books.unheld:
                yield Suspicion(
                    3, f"hold {id}", f"job {jobs[0].id} of {jobs[0].user} has GPUs that nobody holds", TRUTH
                )

    def _slots(self, where: str, claims: list[Claim], nodes: Nodes) -> Iterator[Suspicion]:
        """5: no GPU is promised twice for the same time."""
        for each in overlaps(claims, nodes):
            yield Suspicion(5, f"{each.node} in {where}", each.text, NEVER)

    def _routes(self, routes: dict[tuple[str, str], str], rows: list[Row]) -> Iterator[Suspicion]:
        """6: routes lead to the port that the session's server has reported."""
        for (user, name), target in routes.items():
            row = _newest(rows, user, name)
            if row is None or not row.open:
                yield Suspicion(6, f"{user}/{name}", f"has a route to {target} and no session", TRUTH)
            elif row.port != urlsplit(target).port:
                yield Suspicion(6, f"{user}/{name}", f"has a route to {target}; port {row.port} was proved", TRUTH)

    def _tokens(self, tokens: list[Any], rows: list[Row]) -> Iterator[Suspicion]:
        """7: a server's token belongs to an open session that is not ending."""
        wanted = {(row.user, row.token_id) for row in rows if row.open and not row.leaving}
        for token in tokens:
            if (token.user, token.id) not in wanted:
                yield Suspicion(7, f"token {token.id}", f"of {token.user} ({token.note}) has no open session", TRUTH)

    def _compare_with_accounting(self) -> None:
        """Find two jobs of one session that ran at the same time, however short, by ``sacct -D``."""
        records = self.truth.records()
        queue = self.truth.queue()
        if records is None or queue is None:
            return
        living = {job.id for job in queue if job.live}
        by_session: dict[str, list[Record]] = {}
        for record in records:
            ran = record.start and (record.end or record.id in living)
            if ran and record.name.removeprefix("carme-") not in self._known_before:
                by_session.setdefault(record.name, []).append(record)
        for name, mine in by_session.items():
            mine.sort(key=lambda r: r.start)
            for one, next_one in itertools.pairwise(mine):
                if one.id != next_one.id and next_one.start < (one.end or float("inf")):
                    text = f"jobs {one.id} and {next_one.id} ran at the same time"
                    self.violations.append(Violation(self._clock() - self._begun, 0, Suspicion(1, name, text, 0)))


def _live_by_session(queue: list[QueuedJob]) -> dict[str, list[QueuedJob]]:
    found: dict[str, list[QueuedJob]] = {}
    for job in queue:
        if job.live:
            found.setdefault(job.session, []).append(job)
    return found


def _newest(rows: list[Row], user: str, name: str) -> Row | None:
    mine = [row for row in rows if (row.user, row.server_name) == (user, name) and not row.parent]
    return mine[-1] if mine else None
