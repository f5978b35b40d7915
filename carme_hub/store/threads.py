"""A thread pool for database access only.

The event loop's default pool resolves host names and looks up users; a database that does not answer must not occupy
it. The use cases and services call ``in_store_thread``.
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

#: Number of threads; an engine keeps as many connections.
THREAD_COUNT = 8
#: Seconds for which work waits for a free thread.
THREAD_TIMEOUT = 60.0
# The interpreter waits for the threads at exit, so that running work is finished.
_threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="carme-store")


async def in_store_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that uses the database in a thread, and return its result.

    Raises:
        StoreError: no thread was free in time; the function was not called.
    """
    context = contextvars.copy_context()
    work = _threads.submit(lambda: context.run(function, *args, **kwargs))
    outcome = asyncio.wrap_future(work)
    try:
        await asyncio.wait([outcome], timeout=THREAD_TIMEOUT)
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    if work.cancel():  # succeeds only if it has not begun
        raise StoreError("The database does not answer: earlier requests are still waiting.")
    return await outcome
