"""A service of the hub's own that ended is seen within moments, once, and not while the hub itself stops it."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.spawners.hub.service_restart import keep_services


class ServiceThatEnds:
    """A managed service as JupyterHub keeps it: it is its own spawner, and counts who was told of its end."""

    managed, name = True, "quotas"

    def __init__(self) -> None:
        self.spawner = self
        self._poll_callback: object | None = object()
        self.over = False
        self.fault: Exception | None = None
        self.told = 0

    async def poll_and_notify(self) -> int | None:
        if self.fault is not None:
            raise self.fault
        if not self.over:
            return None
        self.told += 1
        return 1


class Services(dict[int, ServiceThatEnds]):
    """What the hub has, which counts the looks at it."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


async def watched(*services: ServiceThatEnds, rest: float = 600.0) -> None:
    """Let them be looked at some times."""
    found = Services(enumerate(services))
    app = SimpleNamespace(_service_map=found, log=logging.getLogger())
    keeping = asyncio.create_task(keep_services(app, every=0.01, rest=rest))
    async with asyncio.timeout(30):
        while found.looks < 10:
            await asyncio.sleep(0.01)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_an_end_is_told_once_and_the_next_one_is_left_to_jupyterhubs_own_look() -> None:
    service = ServiceThatEnds()
    await watched(service)
    assert service.told == 0
    service.over = True
    await watched(service)
    assert service.told == 1


async def test_one_that_ends_again_much_later_is_seen_again() -> None:
    service = ServiceThatEnds()
    service.over = True
    await watched(service, rest=0.02)
    assert service.told > 1


async def test_a_service_that_the_hub_stops_is_not_started_again() -> None:
    service = ServiceThatEnds()
    service.over, service._poll_callback = True, None
    await watched(service)
    assert service.told == 0


async def test_a_fault_in_one_does_not_hide_another() -> None:
    broken, service = ServiceThatEnds(), ServiceThatEnds()
    broken.name, broken.fault, service.over = "broken", OSError("no"), True
    await watched(broken, service)
    assert service.told == 1
