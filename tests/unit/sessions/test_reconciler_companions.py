"""A companion runs when Slurm says so, ends with its session however that ends, and is no session of the server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_parts import looked_at, running, shown, until, until_ended
from slurm_as_told import ForgedSlurm

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.sessions.reconciler import WITH_ITS_SESSION, SessionReconciler
from carme_hub.sessions.registry import CallbackRefused, SessionRegistry

BIG = Request(profile="a100", image="default", gpus=Gpus("a100", 4), nodes=2)


async def beside(
    registry: SessionRegistry, slurm: ForgedSlurm, id: str = "c1", parent: str = "s1", job: int = 2
) -> Session:
    """Open a companion whose job waits."""
    await registry.intend(id, "alice", "", BIG, parent=parent)
    slurm.run(job, f"carme-{id}", "PENDING", Phase.WAITING, nodes=())
    return await registry.mark_submitted(id, job, 1000.0)


def state(registry: SessionRegistry, id: str = "c1") -> SessionState:
    found = registry.current(id)
    assert found is not None
    return found.state


async def test_it_runs_when_slurm_says_so_and_calls_nobody(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await beside(registry, slurm)
    await shown(reconciler, "c1")
    assert state(registry) is SessionState.SUBMITTED
    for nonce in ("", "guess"):
        with pytest.raises(CallbackRefused):
            await registry.prove("c1", nonce, 5000, "node1")
    slurm.run(2, "carme-c1", nodes=("node2", "node3"))
    await until(lambda: state(registry) is SessionState.RUNNING)
    found = registry.current("c1")
    assert found is not None
    assert (found.node, found.port, found.started > 0) == ("node2", 0, True)
    await looked_at(slurm)
    assert slurm.cancelled == []


@pytest.mark.parametrize("how", ["cancelled", "ended", "gone"])
async def test_it_ends_with_its_session(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, how: str
) -> None:
    await running(registry, slurm)
    await beside(registry, slurm, parent="s1" if how != "gone" else "s0")
    await shown(reconciler)
    if how == "cancelled":
        await reconciler.cancel("s1", "Stopped.")
    elif how == "ended":
        slurm.end(1, "TIMEOUT")
    ended = await until_ended(registry, "c1")
    assert ended.end_reason == WITH_ITS_SESSION
    assert 2 in slurm.cancelled


@pytest.mark.parametrize("how", ["cancelled", "ended", "gone"])
async def test_a_batch_job_outlives_its_session(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, how: str
) -> None:
    await running(registry, slurm)
    await registry.intend("c1", "alice", "", replace(BIG, batch="long"), parent="s1" if how != "gone" else "s0")
    slurm.run(2, "carme-c1", nodes=("node2", "node3"))
    await registry.mark_submitted("c1", 2, 1000.0)
    await until(lambda: state(registry) is SessionState.RUNNING)
    if how == "cancelled":
        await reconciler.cancel("s1", "Stopped.")
        slurm.end(1, "CANCELLED")
    elif how == "ended":
        slurm.end(1, "TIMEOUT")
    if how != "gone":
        await until_ended(registry, "s1")
    await looked_at(slurm)
    assert state(registry) is SessionState.RUNNING
    assert 2 not in slurm.cancelled
    slurm.end(2, "COMPLETED")
    assert (await until_ended(registry, "c1")).end_reason == "The server ended by itself."


@pytest.mark.parametrize(
    ("status", "requeue", "cancelled", "continued"),
    [(85, True, False, True), (1, True, False, False), (85, False, False, False), (85, True, True, False)],
)
async def test_a_batch_job_is_continued_where_it_says_so_before_its_row_is_closed(
    reconciler: SessionReconciler,
    registry: SessionRegistry,
    slurm: ForgedSlurm,
    status: int,
    requeue: bool,
    cancelled: bool,
    continued: bool,
) -> None:
    seen: list[bool] = []

    async def continue_it(session: Session) -> str:
        seen.append(registry.current(session.id) is not None)
        return "Another job continues it."

    reconciler.continuations._open_next = continue_it
    await registry.intend("c1", "alice", "", replace(BIG, batch="long", requeue=requeue), parent="s1")
    slurm.run(2, "carme-c1", nodes=("node2", "node3"))
    await registry.mark_submitted("c1", 2, 1000.0)
    await until(lambda: state(registry) is SessionState.RUNNING)
    if cancelled:
        await reconciler.cancel("c1", "It was cancelled.")
    slurm.end(2, "FAILED", status)
    ended = await until_ended(registry, "c1")
    assert seen == [True] * continued
    assert (ended.end_reason == "Another job continues it.") is continued


async def test_its_end_touches_neither_its_session_nor_other_companions(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await beside(registry, slurm)
    await beside(registry, slurm, "c2", job=3)
    await shown(reconciler, "c2")
    slurm.end(2, "PREEMPTED")
    await until_ended(registry, "c1")
    await looked_at(slurm)
    assert {s.id for s in registry.open_sessions()} == {"s1", "c2"}
    assert slurm.cancelled == []
    assert [s.id for s in await registry.all_companions_of("s1")] == ["c1", "c2"]


async def test_it_is_no_session_of_the_server(registry: SessionRegistry, slurm: ForgedSlurm) -> None:
    await running(registry, slurm)
    await beside(registry, slurm)
    assert [s.id for s in registry.open_of("alice", "")] == ["s1"]
    assert [s.id for s in registry.companions_of("s1")] == ["c1"]
    await registry.close("s1", "Stopped.")
    await beside(registry, slurm, "c2", job=3)
    await registry.close("c1", WITH_ITS_SESSION)
    last = registry.last_end("alice", "")
    assert last is not None
    assert last.id == "s1"  # neither the end nor the start of a companion is the server's


async def test_a_hub_that_starts_finds_companions_and_ends_those_whose_session_is_over(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    before = SessionRegistry(registry._store, "lab")
    await running(before, slurm)
    await beside(before, slurm)
    await before.intend("s2", "alice", "other", BIG)
    await beside(before, slurm, "c2", "s2", job=3)
    await before.close("s2", "Stopped.")  # and that hub died before it cancelled the companion
    await registry.load()
    assert {s.id for s in registry.open_sessions()} == {"s1", "c1", "c2"}
    assert [s.id for s in registry.companions_of("s1")] == ["c1"]
    await until_ended(registry, "c2")
    await looked_at(slurm)
    assert registry.current("c1") is not None
    assert slurm.cancelled == [3]
