"""The home page counts results that are kept on a node, and those of which their node has said nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

from sqlalchemy import Engine

from carme_hub.spawners.handlers.home.kept import KeptLookup, OnNodes
from carme_hub.spawners.staging.reports import SILENT_AFTER, Stagings

STAGE = {"in": [{"source": "s3:b/x", "target": "x"}], "out": [{"source": "run", "target": "/full/run"}]}
KEPT = {"way": "out", "state": "kept", "failures": 1}
ALICE = SimpleNamespace(name="alice")


@dataclass
class RegistryOfEnded:
    """Knows which sessions are open, and when others ended and whether they had run."""

    open: set[str] = field(default_factory=set)
    never_ran: set[str] = field(default_factory=set)
    at: float = 0.0
    questions: int = 0

    def current(self, id: str) -> object:
        return SimpleNamespace(id=id) if id in self.open else None

    async def ended(self, ids: list[str]) -> list[SimpleNamespace]:
        self.questions += 1
        return [SimpleNamespace(id=id, ended=self.at, started=0.0 if id in self.never_ran else 1.0) for id in ids]


async def counted(stagings: Stagings, registry: RegistryOfEnded) -> OnNodes:
    question = KeptLookup()._question(ALICE, SimpleNamespace(stagings=stagings, registry=registry))
    assert question is not None
    return await question()


async def test_silent_nodes_are_counted_beside_what_is_kept(engine: Engine) -> None:
    then = time.time() - SILENT_AFTER - 60
    old, registry = Stagings(engine, "one", lambda: then), RegistryOfEnded(at=then)
    ids = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(5)]
    kept, silent, running, waiting, done = ids
    for id in ids:
        nonce = await old.open(id, "alice", STAGE)
        if id == kept:
            await old.report(id, nonce, KEPT, "node1")
        elif id == done:
            await old.report(id, nonce, {"way": "out", "state": "done"}, "node1")
        elif id != waiting:
            await old.report(id, nonce, {"way": "in", "state": "done"}, "node2")
    registry.open, registry.never_ran = {running}, {waiting}
    assert await counted(Stagings(engine, "one"), registry) == OnNodes(kept=1, silent=1)
    assert registry.questions == 1
    registry.open |= {silent, waiting}
    assert await counted(Stagings(engine, "one"), registry) == OnNodes(kept=1)
    assert registry.questions == 1, "nothing is asked of sessions of which nothing would be told"
