"""Actions at the start of a hub with one of Carme Hub's spawners, before the first request.

JupyterHub does not notify a spawner class of its start, and creates no spawner object before a user needs one. But
wrong settings should stop the hub at once, and pending cancellations should continue. JupyterHub loads every installed
spawner class before its event loop runs, and has no hook: so ``JupyterHub.start`` is wrapped, and
``JupyterHub.init_db``, before which it writes nothing. Nothing changes for hubs with another spawner.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from jupyterhub.app import JupyterHub

from carme_hub.errors import CarmeError, NotActive
from carme_hub.fencing import NOT_ACTIVE, ticket_of
from carme_hub.garbage import ShortCollections
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.hub.lease.active_hub import duties, fence_routes
from carme_hub.spawners.hub.monitoring.install import keep_checking, watch
from carme_hub.spawners.hub.proxy_routes import keep_routes
from carme_hub.spawners.hub.service_restart import keep_services
from carme_hub.spawners.hub.service_watchdog import keep_watchdog
from carme_hub.store.engine import CarmeStore
from carme_hub.store.lease.fence import check_acts, keep_out_late_writes, refuse_without_lease, verify, verify_at

_tasks: set[asyncio.Task[None]] = set()


def start_with_hub(spawner_class: Any) -> None:
    """Check the settings and start the shared context before a hub with this spawner listens."""
    start = JupyterHub.start

    @functools.wraps(start)
    async def start_with_sessions(app: Any) -> None:
        only_a_command = app.subapp or app.generate_config or app.generate_certs
        if only_a_command or not issubclass(app.spawner_class, spawner_class):
            await start(app)
            return
        try:
            spawner = app.spawner_class(config=app.config, log=app.log)
            spawner.check_settings()
            await spawner.start_shared(lambda: app.db)
        except CarmeError as error:
            app.log.critical("Carme Hub cannot start: %s", error)
            app.exit(1)
        loop = asyncio.get_running_loop()
        collections = ShortCollections(loop.call_soon_threadsafe, app.log)
        collections.start()
        readiness = watch(app)
        await start(app)
        for name, keeping in (
            *duties(app.log),
            ("carme-keep-routes", keep_routes(app)),
            ("carme-keep-services", keep_services(app)),
            ("carme-collect-garbage", collections.run()),
            ("carme-keep-watchdog", keep_watchdog(app.log)),
            ("carme-keep-checking", keep_checking(readiness)),
        ):
            task = loop.create_task(keeping, name=name)
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

    JupyterHub.start = start_with_sessions
    _check_lease_first(spawner_class)


def _check_lease_first(spawner_class: Any) -> None:
    """Do not let a hub touch its database while another one is active, and fence what it does from then on."""
    init_db = JupyterHub.init_db

    @functools.wraps(init_db)
    def init_db_with_lease(app: Any) -> None:
        is_hub = getattr(app, "_start_future", None) is not None  # `jupyterhub token` opens the database, too
        if not is_hub or not issubclass(app.spawner_class, spawner_class):
            init_db(app)
            return
        ticket = None
        try:
            ticket = ticket_of()
            if ticket is None:
                refuse_without_lease(CarmeStore(config=app.config).url, CarmeSlurm(config=app.config).cluster)
            else:
                verify_at(app.db_url, ticket)  # the host may have been frozen since, and JupyterHub may upgrade it
            init_db(app)
            if ticket is not None:
                verify(app.db.get_bind(), ticket)
                keep_out_late_writes(app.db.get_bind(), ticket)
                check_acts(app.db.get_bind(), ticket)  # until our own database is open
                fence_routes(app.proxy_class)
        except CarmeError as error:
            app.log.critical("Carme Hub cannot start: %s", error)
            app.exit(NOT_ACTIVE if ticket is not None and isinstance(error, NotActive) else 1)

    JupyterHub.init_db = init_db_with_lease
