"""Lets a hub be watched: ``/hub/ready``, the metrics of ``collector``, and an id for each request in its log.

``startup`` calls it, before the hub answers the first request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.utils import url_path_join
from prometheus_client import REGISTRY

from carme_hub import traces
from carme_hub.logs import identify_requests
from carme_hub.spawners.hub.monitoring.collector import HubCollector
from carme_hub.spawners.hub.monitoring.readiness import SETTING, Readiness, ReadyHandler, parts_of
from carme_hub.spawners.hub.monitoring.status import SERVICES, services_of
from carme_hub.spawners.hub.shared import started_hub

#: Seconds between two checks of what is ready, besides those that are asked for.
CHECK_INTERVAL = 10.0
#: The hub of this process; the collector is registered once, and a test may start several hubs.
_watched: list[Readiness] = []
COLLECTOR = HubCollector(started_hub, lambda: _watched[-1] if _watched else None)
REGISTRY.register(COLLECTOR)


def watch(app: Any) -> Readiness:
    """Let a hub be watched, and return what says whether it is ready."""
    readiness = Readiness(parts_of(app, started_hub()))
    _watched[:] = [readiness]
    web = app.tornado_application
    web.settings[SETTING] = readiness
    web.settings[SERVICES] = Readiness(services_of(app))
    web.add_handlers(".*", [(f"{url_path_join(app.hub_prefix, 'ready')}/?$", ReadyHandler)])
    identify_requests(web)
    traces.set_up()
    return readiness


async def keep_checking(readiness: Readiness, every: float = CHECK_INTERVAL) -> None:
    """Check again and again, for the metrics; runs until it is cancelled."""
    try:
        while True:
            await readiness.check()
            await asyncio.sleep(every)
    finally:
        await readiness.stop()
