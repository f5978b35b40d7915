"""A service of the hub's own that crashed is up again within seconds.

JupyterHub starts it again by itself, but looks only every 30 seconds whether it ended (``Spawner.poll_interval``, which
its services take from no config). So the same look is made more often; what follows from it is JupyterHub's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

#: Seconds between two looks.
EVERY = 3.0
#: Seconds for which a service that ended is left to JupyterHub's own look, so that none is started in a tight circle.
REST = 30.0


async def keep_services(app: Any, every: float = EVERY, rest: float = REST) -> None:
    """Look whether the services that the hub manages run; goes on until it is cancelled."""
    ended: dict[str, float] = {}
    while True:
        await asyncio.sleep(every)
        for service in list(app._service_map.values()):
            spawner = service.spawner if service.managed else None
            # JupyterHub itself looks no more at one that it stops.
            if spawner is None or spawner._poll_callback is None:
                continue
            if time.monotonic() - ended.get(service.name, -rest) < rest:
                continue
            try:
                if await spawner.poll_and_notify() is not None:
                    ended[service.name] = time.monotonic()
            except Exception:  # the next look may go well, and other services are looked at all the same
                app.log.exception("Whether service %s runs is not known", service.name)
