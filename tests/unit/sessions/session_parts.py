"""A session that runs, and the waits for what becomes of it, for the tests beside this file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slurm_as_told import ForgedSlurm

from carme_hub.domain.sessions.liveness import Liveness, LivenessTimeouts
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry

REQUEST = Request(profile="cpu", image="default")
#: How far a clock is put forward for what the keeper waits for; a slow machine takes less than any of these differ by.
SAVED, FORGOTTEN, SETTLED = (
    seconds + 5
    for seconds in (LivenessTimeouts().save_delay, LivenessTimeouts().forget_after, LivenessTimeouts().settle_after)
)


async def running(registry: SessionRegistry, slurm: ForgedSlurm, id: str = "s1") -> Session:
    _, nonce = await registry.intend(id, "alice", "", REQUEST)
    slurm.run(1, f"carme-{id}")
    await registry.mark_submitted(id, 1, 1000.0)
    return await registry.prove(id, nonce, 5000, "node1")


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes soon; the limit is for what never comes."""
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def until_ended(registry: SessionRegistry, id: str = "s1") -> Session:
    await until(lambda: registry.current(id) is None)
    session = await registry.get(id)
    assert session is not None
    return session


async def shown(reconciler: SessionReconciler, id: str = "s1") -> None:
    """Wait until the keeper has seen the session's job."""
    await until(lambda: reconciler.verdict(id).liveness is Liveness.ALIVE)


async def saved(reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm) -> None:
    """Let the job be shown for so long that the controller cannot forget it, and wait until that is noted."""
    await shown(reconciler)
    slurm.clock.ahead += SAVED
    await until(lambda: (session := registry.current("s1")) is not None and session.saved > 0)


async def looked_at(slurm: ForgedSlurm, *, questions: int = 0) -> None:
    """Wait for some more looks at the queue and questions to accounting, and for what the keeper makes of them."""
    looks, asked = slurm.looks, slurm.questions
    await until(lambda: slurm.looks >= looks + 4 and slurm.questions >= asked + questions)
    await asyncio.sleep(0.1)
