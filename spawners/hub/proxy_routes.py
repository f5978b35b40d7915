"""Routes after a restart of the hub or of the proxy: a server that is shown as ready can be reached.

After its restart the hub marks each server that it has checked as ready, but adds missing routes only when the last
check is over (``JupyterHub.init_spawners``). A session that waits in the queue is part of that check, so a session that
got its node in the meantime would lead to an error page until the whole queue is empty. So ``add_route`` adds the route
before the server is marked as ready.

A restarted proxy gets its routes again within seconds. JupyterHub compares routes every five minutes
(``last_activity_interval``); so long people would be cut off from their servers after a crash of a proxy that runs by
itself. A fresh proxy has no route of the hub; ``keep_routes`` queries that every few seconds with one short request,
and calls JupyterHub's own comparison only then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from jupyterhub.proxy import ConfigurableHTTPProxy

from carme_hub import metrics

POLL_INTERVAL = 5.0


async def add_route(spawner: Any) -> None:
    """Add the route of a server that started while the hub was down; await it before the server counts as ready."""
    proxy = spawner.user.settings["proxy"]
    if proxy.should_start and not proxy.app._start_future.done():
        return  # JupyterHub starts its own proxy later, and then sets all routes
    data = {"user": spawner.user.name, "server_name": spawner.name}
    try:
        await proxy.add_route(spawner.proxy_spec, spawner.server.host, data)
    except (
        Exception
    ):  # a proxy of any class can raise anything; the session continues, and JupyterHub compares routes later
        spawner.log.exception("The proxy did not take the route of %s", spawner._log_name)


async def keep_routes(app: Any, every: float = POLL_INTERVAL) -> None:
    """Set all routes of a proxy that has lost them; runs until it is cancelled."""
    if not isinstance(app.proxy, ConfigurableHTTPProxy) or app.proxy.should_start:
        return  # JupyterHub restarts its own proxy, and restores its routes
    while True:
        await asyncio.sleep(every)
        try:
            routes = await app.proxy.get_all_routes()
            metrics.PROXY_ANSWERED.set_to_current_time()
            if app.hub.routespec not in routes:
                app.log.warning("The proxy has no route of this hub; all routes are set again")
                await app.proxy.check_routes(app.users, app._service_map, routes)
                metrics.ROUTES_RESTORED.inc()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            app.log.warning("The proxy does not answer: %s", error)
        except Exception:  # the loop must go on, since nothing else would set the routes again
            app.log.exception("The routes could not be compared")
