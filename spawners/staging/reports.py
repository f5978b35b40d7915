"""What the nodes report of sessions' copies, and what users decide about results that are still on a node."""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from carme_hub.domain.staging.entries import entries_of, lines
from carme_hub.domain.staging.progress import (
    ENDED,
    Report,
    StageState,
    expected_speed,
    origin,
    report_of,
    sentence,
    together,
    why,
)
from carme_hub.errors import Refused
from carme_hub.sessions.registry import hash_nonce
from carme_hub.store.staging import Staging, StagingStore
from carme_hub.store.threads import in_store_thread

log = logging.getLogger("carme_hub")
#: Seconds for which a report of moving data is kept in memory before it is stored again.
STORE_EVERY = 10.0
#: Seconds after which it is told that a node says nothing; one that is up tries every ten minutes.
SILENT_AFTER = 1500.0
#: The most nodes of one job; seconds after which data that was arriving is not said to arrive any more, and until the
#: first report of a job that has begun.
MOST_NODES, OLD_AFTER, FIRST_WITHIN = 4096, 60.0, 15.0


class ReportRefused(Refused):
    """The report is not of this session's node."""


class Stagings:
    """The copies of this hub's sessions.

    The newest reports are in memory; the database gets every change of state, and others now and then.
    """

    def __init__(self, engine: Engine, cluster: str, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = StagingStore(engine, cluster), clock
        self._newest: dict[str, Staging] = {}

    async def open(self, session: str, user: str, stage: Mapping[str, Any]) -> str:
        """Write down that a session copies data, and return what its node proves itself with."""
        nonce = secrets.token_urlsafe(32)
        await in_store_thread(self._store.add, session, user, stage, hash_nonce(nonce), self._clock())
        return nonce

    async def get(self, session: str) -> Staging | None:
        """Return the copies of a session as they were last reported, None where it has none."""
        return self._newest.get(session) or await in_store_thread(self._store.get, session)

    async def of(self, user: str) -> list[Staging]:
        """Return those of a user, the newest first."""
        return [self._newest.get(each.session, each) for each in await in_store_thread(self._store.of, user)]

    async def kept(self, user: str = "") -> list[Staging]:
        """Return those whose results are still on a node."""
        return await in_store_thread(self._store.kept, user)

    async def report(self, session: str, nonce: str, value: object, node: str) -> Staging:
        """Take a report, and return what is known then; ``answer`` is what the node is told.

        Raises:
            ReportRefused: it is not of this session. ValueError: it is no report.
        """
        known = await self.get(session)
        if known is None or not hmac.compare_digest(known.nonce_hash, hash_nonce(nonce)):
            raise ReportRefused("the nonce is not this session's")
        own, now, node = report_of(value), self._clock(), node or known.node
        before = known.nodes.get(node)
        nodes = {**{name: each for name, each in known.nodes.items() if name}, node: own}
        if len(nodes) > MOST_NODES:
            raise ValueError(f"a job has at most {MOST_NODES} nodes")
        report = together(nodes)
        decision = without_node(known.decision, node) if own.state in ENDED else known.decision
        new = replace(known, state=report.state, node=node, at=now, report=report, nodes=nodes, decision=decision)
        self._newest[session] = new
        if before is None or own.state is not before.state or now - known.at > STORE_EVERY:
            await in_store_thread(self._store.put_report, new)
        if report.state in ENDED or report.state is StageState.KEPT:
            self._newest.pop(session, None)  # the node asks again late, and the database has it
        if own.state is StageState.KEPT:
            log.warning("Session %s of %s keeps results on %s: %s", session, known.user, node, why(own))
        return new

    def arriving(self, session: str, began: float) -> str:
        """Return how far the data is that a running job has copied to its first node, "" where nothing is on its way.

        Args:
            began: when the job began.
        """
        found, now = self._newest.get(session), self._clock()
        if found is None or found.report is None:
            return "Copying data to the node." if began and now < began + FIRST_WITHIN else ""
        if found.report.state is not StageState.MOVING or found.report.way != "in" or now > found.at + OLD_AFTER:
            return ""
        return sentence(found.report)

    async def decide(self, user: str, session: str, do: str, out: str = "") -> Staging:
        """Store what a user wants done with results that are still on a node; the node asks within minutes.

        Args:
            do: "retry" or "discard". out: other targets as lines ``SOURCE -> TARGET``; "" = those of before.

        Raises:
            Refused: there is nothing to decide, or a line is wrong.
        """
        known = await in_store_thread(self._store.get, session)
        if known is None or known.user != user or known.state is not StageState.KEPT:
            raise Refused("Nothing of that session is kept on a node.", reason="unknown")
        if do not in ("retry", "discard"):
            raise Refused("Say retry or discard.", reason="bad-options")
        entries, wrong = entries_of(out or lines(known.stage.get("out", [])), way="out")
        if wrong:
            raise Refused(f"Results to copy out: {wrong}.", reason="bad-options")
        decision: dict[str, Any] = {"do": do, "by": user, "at": self._clock()}
        # Of what the others bring out later nothing was known when this was decided.
        decision["nodes"] = sorted(name for name, each in known.nodes.items() if each.state is StageState.KEPT)
        if do == "retry":
            decision["out"] = entries
        await in_store_thread(self._store.decide, session, decision)
        return replace(known, decision=decision)

    async def sentence_of(self, staging: Staging) -> str:
        """Return how far the copies are, with a time by what was measured from the same places before."""
        report = staging.report
        if report is None:
            return ""
        if report.state is not StageState.MOVING or report.left:
            return sentence(report)
        places = [str(each["source" if report.way == "in" else "target"]) for each in staging.stage.get(report.way, [])]
        return sentence(report, expected_speed(measured(await self.of(staging.user), report.way), places))


def answer(staging: Staging, node: str) -> dict[str, Any]:
    """Return what a node is told: the decision, where it is about what this node keeps."""
    about = staging.decision.get("nodes")
    return dict(staging.decision) if not about or (node or staging.node) in about else {}


def without_node(decision: Mapping[str, Any], node: str) -> Mapping[str, Any]:
    """Return what is left of a decision once a node has done it: it does not count for what comes later."""
    about = [each for each in decision.get("nodes", ()) if each != node]
    return {**decision, "nodes": about} if about else {}


def silence(staging: Staging, ended: float, now: float) -> str:
    """Return what is said of results of which their node has said nothing since the end, "" where that is not so.

    Args:
        ended: when the session ended after it had run; 0 = it has not.
    """
    waits = staging.state in (StageState.WAITING, StageState.MOVING, StageState.READY) and staging.stage.get("out")
    if not ended or not waits or now - max(ended, staging.at) < SILENT_AFTER:
        return ""
    return (
        f"It is not known whether the results are at their targets: {staging.where or 'the node'} has said nothing "
        "since the end. If it is down, they are on its disk, and it goes on with them at its next start."
    )


def measured(known: list[Staging], way: str) -> list[tuple[str, int]]:
    """Return origin and mean speed (bytes in a second) of copies that are done."""
    key = "source" if way == "in" else "target"
    return [
        (origin(str(entry[key])), each.report.mean)
        for each in known
        if each.report is not None and each.report.way == way and each.report.bytes > 1 << 20
        for entry in each.stage.get(way, [])
    ]


def as_json(staging: Staging, said: str = "") -> dict[str, Any]:
    """Return the copies of a session as REST has them; ``said``: a sentence for people."""
    report: Report | None = staging.report
    return {
        "session": staging.session,
        "state": staging.state.value,
        "node": staging.where,
        "nodes": {name: each.state.value for name, each in staging.nodes.items()},
        "created": int(staging.created),
        "at": int(staging.at),
        "stage": dict(staging.stage),
        "report": report.as_json() if report is not None else None,
        "decision": dict(staging.decision),
        "said": said or (why(report) if report is not None and staging.state is StageState.KEPT else ""),
    }
