"""Run long work on the event loop in steps, so that other tasks can run after each step.

A thread is not enough: each time it gets the interpreter's lock it keeps it for five milliseconds, and a page that
releases the lock twenty times waits twenty times. The Slurm client, the watcher and the hub's handlers call this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import TypeVar

_T = TypeVar("_T")


async def in_steps(work: Generator[None, None, _T]) -> _T:
    """Run a generator to its end and return its result; its exceptions are raised here."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)


async def all_steps(work: Iterator[None]) -> None:
    """Run all steps of work without a result."""
    for _ in work:
        await asyncio.sleep(0)
