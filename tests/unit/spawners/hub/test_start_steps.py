"""A start goes on in pieces: after requests that have begun, and with turns of the loop for new ones in between."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from test_start_queue import Turns

from carme_hub.spawners.hub import start_queue as start_queue_module
from carme_hub.spawners.hub.start_queue import StartQueue


def request(queue: StartQueue, until: asyncio.Future[None]) -> asyncio.Task[None]:
    """Return the task of a request that is answered when the future is done."""

    async def answer() -> None:
        queue.request_begins()
        await until

    return asyncio.create_task(answer())


async def test_a_start_goes_on_when_a_request_that_has_begun_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_queue_module, "REQUEST_WAIT", 30.0)
    monkeypatch.setattr(start_queue_module, "MAX_REQUEST", 30.0)
    queue, answered = StartQueue(), asyncio.get_running_loop().create_future()
    queue.starts = start_queue_module.FEW_STARTS + 1
    done: list[str] = []

    async def start() -> None:
        done.append("begun")
        await asyncio.sleep(0)
        done.append("went on")

    asked = request(queue, answered)
    await asyncio.sleep(0)
    starting = asyncio.create_task(queue.paced(start()))
    await asyncio.sleep(0.05)
    assert done == ["begun"]
    answered.set_result(None)
    async with asyncio.timeout(10):
        await asyncio.gather(starting, asked)
    assert done == ["begun", "went on"]


@pytest.mark.parametrize("setting", ["REQUEST_WAIT", "MAX_REQUEST"])
async def test_a_request_that_waits_for_something_else_does_not_hold_up_a_start(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    for name in ("REQUEST_WAIT", "MAX_REQUEST"):
        monkeypatch.setattr(start_queue_module, name, 0.01 if name == setting else 30.0)
    queue, never = StartQueue(), asyncio.get_running_loop().create_future()
    queue.starts = start_queue_module.FEW_STARTS + 1
    asked = request(queue, never)
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        await queue.paced(asyncio.sleep(0))
    assert not asked.done()
    never.cancel()


async def test_a_few_starts_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_queue_module, "REQUEST_WAIT", 30.0)
    monkeypatch.setattr(start_queue_module, "MAX_REQUEST", 30.0)
    queue, never = StartQueue(), asyncio.get_running_loop().create_future()
    queue.starts = start_queue_module.FEW_STARTS
    asked = request(queue, never)
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await queue.paced(asyncio.sleep(0))
    assert not asked.done()
    never.cancel()


async def test_between_two_pieces_of_starts_a_request_is_taken_from_its_connection() -> None:
    queue, turns = StartQueue(), Turns()
    went_on: list[int] = []

    async def start() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            went_on.append(turns.now)

    async with asyncio.timeout(10):
        await asyncio.gather(*(queue.paced(start()) for _ in range(4)))
    turns.going = False
    assert len(went_on) == 12
    assert all(later - earlier >= start_queue_module.LOOP_ITERATIONS for earlier, later in itertools.pairwise(went_on))


async def test_what_a_start_returns_raises_and_is_cancelled_by_is_as_without_the_queue() -> None:
    queue = StartQueue()
    heard: list[str] = []

    async def returns() -> str:
        await asyncio.sleep(0)
        return "an address"

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def is_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("cancelled")
            await asyncio.sleep(0)
            heard.append("cleaned up")
            raise

    async def takes_too_long() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "too long"
        return ""

    async with asyncio.timeout(10):
        assert await queue.paced(returns()) == "an address"
        with pytest.raises(ValueError, match="no"):
            await queue.paced(fails())
        assert await queue.paced(takes_too_long()) == "too long"
        starting = asyncio.create_task(queue.paced(is_cancelled()))
        await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert heard == ["cancelled", "cleaned up"]
        await queue.paced(asyncio.sleep(0))  # nobody is held up by it


async def test_a_start_that_is_cancelled_while_it_waits_for_a_request_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_queue_module, "REQUEST_WAIT", 30.0)
    monkeypatch.setattr(start_queue_module, "MAX_REQUEST", 30.0)
    queue, never = StartQueue(), asyncio.get_running_loop().create_future()
    queue.starts = start_queue_module.FEW_STARTS + 1
    asked = request(queue, never)
    await asyncio.sleep(0)
    heard: list[str] = []

    async def start() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    starting = asyncio.create_task(queue.paced(start()))
    await asyncio.sleep(0.05)
    starting.cancel()
    await asyncio.wait([starting], timeout=10)
    assert starting.cancelled()
    assert heard == ["cancelled"]
    never.cancel()
    await asyncio.wait([asked], timeout=10)
    async with asyncio.timeout(10):
        await queue.paced(asyncio.sleep(0))
