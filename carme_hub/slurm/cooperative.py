"""Long work on the event loop, done in steps: everybody else gets their turn after each.

A thread would not do: it takes the interpreter's lock from the loop for five milliseconds at each turn, and a page that
gives the lock away twenty times waits for it twenty times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import TypeVar

_T = TypeVar("_T")


async def in_steps(work: Generator[None, None, _T]) -> _T:
    """Drive a generator to its end and return what it returns; whatever it raises is raised here."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)


async def all_steps(work: Iterator[None]) -> None:
    """Take all steps of work that returns nothing."""
    for _ in work:
        await asyncio.sleep(0)
