"""Whoever is told that a server is ready reaches it: also after a restart of the hub, and of the proxy.

A hub that was restarted calls each server ready that it has checked, but tells the proxy of the ones it does not know
only when the last check is over (``JupyterHub.init_spawners``). A session that still waits in the queue is part of that
check, so one that got its node meanwhile would lead to an error page until the whole queue is empty. It gets its route
before it is called ready.

A proxy that was restarted gets its routes again within seconds. JupyterHub compares routes every five minutes
(``last_activity_interval``), which is how long people would be cut off from their servers after a crash of a proxy that
runs by itself. A fresh proxy knows no route of the hub's; that is asked every few seconds with one short request, and
only then JupyterHub's own comparison is made.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from jupyterhub.proxy import ConfigurableHTTPProxy

EVERY = 5.0


async def add_route(spawner: Any) -> None:
    """Lead people to a server whose start went on while the hub was away; to be awaited before it is called ready."""
    proxy = spawner.user.settings["proxy"]
    if proxy.should_start and not proxy.app._start_future.done():
        return  # JupyterHub starts its own proxy later, and then gives it all routes
    data = {"user": spawner.user.name, "server_name": spawner.name}
    try:
        await proxy.add_route(spawner.proxy_spec, spawner.server.host, data)
    except Exception:  # whatever class of proxy it is: the session goes on, and JupyterHub compares routes again
        spawner.log.exception("The proxy did not take the route of %s", spawner._log_name)


async def keep_routes(app: Any, every: float = EVERY) -> None:
    """Give a proxy that does not know the hub all routes; runs until it is cancelled."""
    if not isinstance(app.proxy, ConfigurableHTTPProxy) or app.proxy.should_start:
        return  # JupyterHub restarts its own proxy, and restores its routes
    while True:
        await asyncio.sleep(every)
        try:
            routes = await app.proxy.get_all_routes()
            if app.hub.routespec not in routes:
                app.log.warning("The proxy knows no route of this hub; it gets all of them again")
                await app.proxy.check_routes(app.users, app._service_map, routes)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            app.log.warning("The proxy does not answer: %s", error)
        except Exception:  # the next round may go well, and nobody else would give the proxy its routes
            app.log.exception("Routes could not be compared")
