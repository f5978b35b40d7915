"""Commands for users wait for their turn, and one user's many requests leave room for the others'."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from carme_hub.errors import SlurmRejected
from carme_hub.slurm.owner.turns import TooManyRequests, Turns


class Running:
    """Notes how many commands run at the same time."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.go = asyncio.Event()

    async def command(self, user: str) -> None:
        async with self.turns.of(user):
            self.now[user] += 1
            self.most[user] = max(self.most[user], self.now[user])
            self.most[""] = max(self.most[""], self.now.total())
            await self.go.wait()
            self.now[user] -= 1


async def test_a_user_with_many_requests_leaves_room_for_another() -> None:
    running = Running(Turns(in_all=3, per_user=2, waiting=10))
    tasks = [asyncio.create_task(running.command("alice")) for _ in range(10)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(running.command("bob")))
    await asyncio.sleep(0.01)
    assert running.now == {"alice": 2, "bob": 1}
    running.go.set()
    await asyncio.gather(*tasks)
    assert running.most == {"alice": 2, "bob": 1, "": 3}


async def test_beyond_what_may_wait_nothing_is_done_and_it_says_so() -> None:
    turns = Turns(in_all=3, per_user=1, waiting=2)
    running = Running(turns)
    tasks = [asyncio.create_task(running.command("alice")) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(TooManyRequests, match="Try it again in a moment"):
        await running.command("alice")
    assert issubclass(TooManyRequests, SlurmRejected), "so nothing was done"
    running.go.set()
    await asyncio.gather(*tasks)
    await running.command("alice")


async def test_a_request_that_is_given_up_gives_its_turn_back() -> None:
    turns = Turns(in_all=1, per_user=1, waiting=2)
    running = Running(turns)
    tasks = [asyncio.create_task(running.command("alice")) for _ in range(2)]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    running.go.set()
    await asyncio.wait_for(running.command("alice"), 5)
