"""The duties of a hub that ``carme-hub standby`` has started; ``startup`` calls them. Without a lease there are none.

Databases and Slurm are fenced where they are used (``store.lease.fence``, ``slurm.command``). A proxy knows no tokens,
and a hub that was frozen compares its routes when it thaws: it would remove those of servers that have started since,
before anything can kill it. So each change of a route is checked here, and a hub that finds another one active ends by
itself, also where ``carme-hub standby`` stands still and cannot kill it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from carme_hub.errors import NotActive, StoreError
from carme_hub.fencing import ALIVE, NOT_ACTIVE, may_act, ticket_of

#: Of methods that are fenced already.
_MARK = "_carme_fenced"


def duties(log: Any) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield what the event loop of this hub has to do, with a name for each; nothing without a lease."""
    descriptor = int(os.environ.get(ALIVE, "-1"))
    if descriptor >= 0:
        yield "carme-say-alive", say_alive(descriptor)
    if ticket_of() is not None:
        yield "carme-end-when-not-active", end_when_not_active(log)


async def say_alive(descriptor: int, every: float = 1.0) -> None:
    """Write to a pipe as long as the event loop runs; runs until it is cancelled, or nobody reads it."""
    while True:
        try:
            os.write(descriptor, b".")
        except BlockingIOError:
            pass  # the reader stands still
        except OSError:
            return
        await asyncio.sleep(every)


async def end_when_not_active(
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    every: float = 1.0,
    end: Callable[[int], object] = os._exit,
) -> None:
    """End this process once another hub is active; a database that does not answer says nothing about that."""
    while True:
        await asyncio.sleep(every)
        try:
            await may_act()
        except NotActive as error:
            log.critical("This hub ends: %s", error)
            end(NOT_ACTIVE)
            return
        except StoreError as error:
            log.warning("%s", error)


def fence_routes(proxy_class: Any) -> None:
    """Have a class of proxies change routes only while this hub is the active one; ``NotActive`` afterwards."""
    for name in ("add_route", "delete_route"):
        change = getattr(proxy_class, name)
        if not hasattr(change, _MARK):
            setattr(proxy_class, name, _fenced(change))


def _fenced(change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(change)
    async def change_if_active(proxy: Any, *args: Any, **kwargs: Any) -> Any:
        await _until_known()
        return await change(proxy, *args, **kwargs)

    setattr(change_if_active, _MARK, True)
    return change_if_active


async def _until_known(every: float = 0.5) -> None:
    """Wait while the database does not answer: JupyterHub would end a server whose route it cannot add."""
    while True:
        try:
            await may_act()
        except NotActive:
            raise
        except StoreError:
            await asyncio.sleep(every)  # `carme-hub standby` ends the hub if this takes long
        else:
            return
