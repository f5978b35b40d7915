"""Call what may never return: a database whose machine is frozen answers nothing, not even an error.

The threads of asyncio's own pool are waited for when the command ends, so it would never end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_daemon_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread that nobody waits for at the end, and return its result."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():  # it was given up
            set_outcome(value)

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  the caller gets it
            _call_soon(loop, settle, outcome.set_exception, error)
        else:
            _call_soon(loop, settle, outcome.set_result, result)

    threading.Thread(target=run, name="carme-read", daemon=True).start()
    return await outcome


def _call_soon(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    try:
        loop.call_soon_threadsafe(*call)
    except RuntimeError:
        return  # the command has ended meanwhile
