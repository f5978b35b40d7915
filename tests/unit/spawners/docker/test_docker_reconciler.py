"""Who has which GPU until when, and what is left behind: by the labels, whatever engine and hub go through."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from engine_in_memory import JUNK, Answer, EngineInMemory
from jupyterhub import orm

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import EngineRejected, EngineUnreachable, Refused
from carme_hub.spawners.docker.container import ContainerDefaults, ContainerOwner, ContainerSpec, render
from carme_hub.spawners.docker.engine import Engine
from carme_hub.spawners.docker.gpu_allocation import Gpu
from carme_hub.spawners.docker.reconciler import ENDED_KEPT, UNWANTED_KEPT, ContainerReconciler

FOUR = tuple(Gpu(f"GPU-{n}", "a100") for n in range(4))
WHOSE = ("carme", "this-hub")
# docker-py leaves sockets of failed connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.moment = 1_000_000.0

    def __call__(self) -> float:
        return self.moment


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    engine = EngineInMemory(tmp_path)
    yield engine
    engine.end()


@pytest.fixture
def db() -> Any:
    session = orm.new_session_factory("sqlite:///:memory:")()
    yield session
    session.close()
    session.get_bind().dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., ContainerReconciler]


@pytest.fixture
async def make(memory: EngineInMemory, db: Any, clock: Clock) -> AsyncIterator[Make]:
    """Make keepers, each with an engine client of its own, and stop them all."""
    made: list[ContainerReconciler] = []

    def one(limit: float = 60, **more: Any) -> ContainerReconciler:
        log, engine = logging.getLogger("test"), Engine(memory.connect, limit=limit)
        more = {"whose": WHOSE, "now": clock, "monotonic": clock, **more}
        made.append(ContainerReconciler(engine, FOUR, lambda: db, log, **more))
        return made[-1]

    yield one
    memory.silent.clear()
    for reconciler in made:
        await reconciler.stop()


def claim(db: Any, session: str) -> orm.Spawner:
    user = orm.User(name=session)
    spawner = orm.Spawner(user=user, name="", state={"session": session})
    db.add_all([user, spawner])
    db.commit()
    return spawner


def request(gpus: int = 1) -> Request:
    return Request("gpu", "lab", Gpus("a100", gpus) if gpus else Gpus(), 1, 1024)


async def place(reconciler: ContainerReconciler, session: str, gpus: int = 1, ends: int = 2_000_000) -> str:
    async def arguments(ids: tuple[str, ...]) -> Any:
        whose, asked = ContainerOwner(*reconciler.whose, session, "", session), request(gpus)
        home = ("volume", "/home/x")
        return render(
            ContainerSpec(
                whose, ContainerDefaults(), asked, session, "site/lab:1", ("x",), "1:1", home, "/", ends, 8888, ids
            )
        )

    return await reconciler.create_container(request(gpus), arguments)


async def begin(reconciler: ContainerReconciler, session: str, gpus: int = 1, **more: Any) -> str:
    id = await place(reconciler, session, gpus, **more)
    await reconciler.run(id)
    return id


async def settled(reconciler: ContainerReconciler) -> None:
    """Look, and wait for what the look began."""
    await reconciler.refresh()
    for task in tuple(reconciler._ending.values()):
        await task


async def test_of_many_starts_at_once_none_gets_a_gpu_of_another(make: Make, memory: EngineInMemory) -> None:
    reconciler = make()
    found = await asyncio.gather(*(begin(reconciler, f"s{n}") for n in range(20)), return_exceptions=True)
    assert memory.given() == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    refused = [error for error in found if isinstance(error, Refused)]
    assert len(refused) == 16
    assert "0 of 4 a100 free" in refused[0].message


async def test_two_hubs_on_one_engine_give_no_gpu_twice(make: Make, memory: EngineInMemory) -> None:
    keepers = [make(), make(whose=("other", "other-hub"))]
    starts = [begin(keepers[n % 2], f"s{n}") for n in range(8)]
    await asyncio.gather(*starts, return_exceptions=True)
    assert memory.given() == sorted(set(memory.given()))
    live = [c["Labels"]["carme.gpus"] for c in memory.live()]
    assert sorted(live) == sorted(set(live))


async def test_a_call_that_was_given_up_and_comes_through_late_takes_no_gpu(make: Make, memory: EngineInMemory) -> None:
    reconciler, late = make(), threading.Event()

    def another_comes_first() -> None:
        memory.before_create = lambda: None
        memory.add("running", session="other", gpus="GPU-0", user="bob")
        late.set()

    memory.before_create = another_comes_first
    id = await begin(reconciler, "mine")
    assert late.is_set()
    assert memory.given() == ["GPU-0", "GPU-1"]
    assert memory.containers[id]["Labels"]["carme.gpus"] == "GPU-1"


async def test_a_container_is_not_started_once_another_holds_its_gpu(make: Make, memory: EngineInMemory) -> None:
    reconciler = make()
    id = await place(reconciler, "mine")
    memory.add("running", gpus="GPU-0")
    with pytest.raises(EngineRejected, match="GPU-0 is held by another container"):
        await reconciler.run(id)
    assert memory.given() == ["GPU-0"]
    assert id not in memory.containers


async def test_another_keeper_knows_from_the_labels_what_is_given(make: Make, memory: EngineInMemory) -> None:
    await begin(make(), "before", 3)
    after = make()
    with pytest.raises(Refused, match="1 of 4 a100 free"):
        await place(after, "after", 2)
    await begin(after, "after", 1)
    assert memory.given() == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


async def test_a_time_limit_is_kept_also_by_the_next_keeper(
    make: Make, memory: EngineInMemory, db: Any, clock: Clock
) -> None:
    claim(db, "alice")
    await begin(make(), "alice", ends=1_000_600)
    reconciler = make()
    clock.moment += 599
    await settled(reconciler)
    assert memory.given() == ["GPU-0"]
    clock.moment += 1
    await settled(reconciler)
    assert memory.containers == {}
    assert reconciler.ends["alice", ""] == (clock.moment, "The time limit was reached.")
    assert await reconciler.verdict("alice") == 1


async def test_a_session_that_the_database_forgot_is_ended_and_others_are_not(
    make: Make, memory: EngineInMemory, db: Any, clock: Clock
) -> None:
    reconciler = make()
    row = claim(db, "forgotten")
    claim(db, "wanted")
    for session in ("forgotten", "wanted"):
        await begin(reconciler, session)
    memory.add(session="of-another-hub", prefix="carme", hub="another", user="x")
    memory.add(session="of-another-prefix", prefix="other", hub="this-hub", user="x")
    await settled(reconciler)
    row.state = {}
    db.commit()
    await settled(reconciler)
    assert len(memory.live()) == 4  # one look is not enough
    clock.moment += UNWANTED_KEPT + 1
    await settled(reconciler)
    left = {c["Labels"]["carme.session"] for c in memory.containers.values()}
    assert left == {"wanted", "of-another-hub", "of-another-prefix"}


async def test_a_container_that_nobody_started_gives_its_gpus_back(
    make: Make, memory: EngineInMemory, db: Any, clock: Clock
) -> None:
    reconciler = make()
    claim(db, "claimed")
    await place(reconciler, "claimed", 4)
    await settled(reconciler)
    clock.moment += ENDED_KEPT + 1
    await settled(reconciler)
    assert memory.containers == {}


@pytest.mark.parametrize("answer", JUNK.values(), ids=JUNK.keys())
async def test_what_cannot_be_understood_ends_nothing_and_gives_nothing(
    make: Make, memory: EngineInMemory, clock: Clock, answer: Answer
) -> None:
    reconciler = make()
    await begin(reconciler, "alice")
    memory.answer = answer
    for _ in range(3):
        clock.moment += 10 * UNWANTED_KEPT
        await settled(reconciler)
    assert reconciler.silent_since
    with pytest.raises(EngineUnreachable):
        await reconciler.verdict("alice")
    with pytest.raises(EngineUnreachable):
        await place(reconciler, "bob")
    memory.answer = None
    assert memory.given() == ["GPU-0"]
    reconciler.remember_session("alice")
    await settled(reconciler)
    assert reconciler.silent_since == 0
    assert await reconciler.verdict("alice") is None


async def test_an_engine_that_hangs_or_is_not_there_is_unknown_within_its_time(
    make: Make, memory: EngineInMemory, clock: Clock
) -> None:
    reconciler = make()
    await begin(reconciler, "alice")
    clock.moment += 1000
    memory.silent.set()
    reconciler.engine._limit = 0.1
    async with asyncio.timeout(30):
        with pytest.raises(EngineUnreachable):
            await reconciler.verdict("alice")
    memory.silent.clear()
    memory.socket.unlink()
    other = make()
    with pytest.raises(EngineUnreachable):
        await other.verdict("alice")
    await other.start()  # a hub starts without its engine, too
    assert not other.cluster().known


async def test_an_end_needs_two_answers(make: Make, memory: EngineInMemory) -> None:
    reconciler = make()
    id = await begin(reconciler, "alice")
    row = memory.containers.pop(id)
    memory.asked.clear()
    assert await reconciler.verdict("alice") is None  # the last look is fresh, and polls cost nothing
    assert memory.asked == []
    with contextlib.suppress(KeyError):
        await settled(reconciler)
    memory.asked.clear()
    assert await reconciler.verdict("alice") == 1
    assert memory.asked == [("GET", "/containers/json")] * 2
    memory.containers[id] = {**row, "State": "exited"}
    assert await reconciler.verdict("alice") == 3  # the status that it ended with


async def test_one_question_serves_all_sessions(make: Make, memory: EngineInMemory) -> None:
    reconciler = make()
    for n in range(4):
        await begin(reconciler, f"s{n}")
        reconciler.remember_session(f"s{n}")
    memory.asked.clear()
    await settled(reconciler)
    assert [await reconciler.verdict(f"s{n}") for n in range(4)] == [None] * 4
    assert memory.asked == [("GET", "/containers/json")]


async def test_what_the_engine_cannot_start_gives_its_gpus_back(make: Make, memory: EngineInMemory) -> None:
    reconciler = make()
    memory.start_refused = 'could not select device driver "" with capabilities: [[gpu]]'
    with pytest.raises(EngineRejected, match="could not select device driver"):
        await begin(reconciler, "alice")
    assert memory.containers == {}
