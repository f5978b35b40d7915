"""Threads for all that waits for the database, and for nothing else.

The loop's own pool resolves names and looks users up: a database that is silent must not take it from them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from carme_hub.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")

#: How many there are; an engine keeps as many connections.
COUNT = 8
#: Seconds for which work waits for a thread to be free.
PATIENCE = 60.0
# The interpreter waits for them at its end: what was begun is finished.
_threads = ThreadPoolExecutor(COUNT, thread_name_prefix="carme-store")


async def in_store_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that asks the database, and return what it returns.

    Raises:
        StoreError: no thread was free in time; nothing was begun.
    """
    context = contextvars.copy_context()
    work = _threads.submit(lambda: context.run(function, *args, **kwargs))
    outcome = asyncio.wrap_future(work)
    try:
        await asyncio.wait([outcome], timeout=PATIENCE)
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    if work.cancel():  # only what has not begun can be
        raise StoreError("The database does not answer: what was asked before is still being waited for.")
    return await outcome
