"""The sentences of a start: what tells how far a copy is, is one line that changes, for whoever reads from when."""

from __future__ import annotations

import asyncio
from typing import Any

from carme_hub.spawners.progress import ALLOCATED, Progress


async def read(progress: Progress, number: int) -> list[dict[str, Any]]:
    """Return the first events that a new reader gets."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(5):
        async for event in progress.events():
            events.append(event)
            if len(events) == number:
                break
    return events


async def test_an_hour_of_copying_is_one_line_for_who_opens_the_page_later() -> None:
    progress = Progress()
    progress.say(20, "Waiting for a node.")
    for percent in range(50, 76):
        progress.say(percent, f"{percent} of 75", "staging")
    progress.say(75, "The data is on the node.")
    assert await read(progress, 3) == [
        {"progress": 20, "message": "Waiting for a node."},
        {"progress": 75, "message": "75 of 75", "about": "staging"},
        {"progress": 75, "message": "The data is on the node."},
    ]
    assert progress.last == "The data is on the node."


async def test_who_reads_meanwhile_gets_each_state_and_nothing_twice() -> None:
    progress = Progress()
    progress.say(50, "1 of 3", "staging")
    reading = asyncio.create_task(read(progress, 4))
    for percent, message in ((60, "2 of 3"), (60, "2 of 3"), (40, "3 of 3")):
        await asyncio.sleep(0.01)
        progress.say(percent, message, "staging")
    await asyncio.sleep(0.01)
    progress.say(0, "done")
    events = await reading
    assert [event["message"] for event in events] == ["1 of 3", "2 of 3", "3 of 3", "done"]
    assert [event["progress"] for event in events] == [50, 60, 60, 60], "it never decreases"


async def test_slurms_own_news_do_not_come_between_what_the_node_tells_of_its_copy() -> None:
    progress = Progress()
    allocated = (ALLOCATED, "Slurm has allocated node1; the container is starting.")
    progress.put(allocated)
    progress.say(50, "1 of 3", "staging")
    progress.copy_told = 7.0
    progress.put(allocated)
    progress.say(60, "2 of 3", "staging")
    progress.put((20, "Waiting: it was put back into the queue."))
    assert [event["message"] for event in await read(progress, 3)] == [
        "Slurm has allocated node1; the container is starting.",
        "2 of 3",
        "Waiting: it was put back into the queue.",
    ]
