"""Restarts a crashed service of the hub within seconds.

JupyterHub restarts its services itself, but polls them only every 30 seconds (``Spawner.poll_interval``, which no
setting changes for services). ``keep_services`` calls the same poll more often; the restart is JupyterHub's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

#: Seconds between two polls.
POLL_INTERVAL = 3.0
#: Seconds without further polls after a service has ended, so that a failing service is not restarted in a tight loop.
COOLDOWN = 30.0


async def keep_services(app: Any, every: float = POLL_INTERVAL, rest: float = COOLDOWN) -> None:
    """Poll the services that the hub manages; runs until it is cancelled."""
    ended: dict[str, float] = {}
    while True:
        await asyncio.sleep(every)
        for service in list(app._service_map.values()):
            spawner = service.spawner if service.managed else None
            # None: JupyterHub is stopping the service, and does not poll it either.
            if spawner is None or spawner._poll_callback is None:
                continue
            if time.monotonic() - ended.get(service.name, -rest) < rest:
                continue
            try:
                if await spawner.poll_and_notify() is not None:
                    ended[service.name] = time.monotonic()
            except Exception:  # the loop must go on for the other services
                app.log.exception("It is unknown whether service %s runs", service.name)
