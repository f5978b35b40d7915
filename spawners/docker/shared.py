"""What all CarmeDockerSpawners of one hub share: one engine, one keeper of the box."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.spawners.docker.engine import Engine, connection
from carme_hub.spawners.docker.gpu_allocation import check_types
from carme_hub.spawners.docker.reconciler import BoxReconciler

_keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[BoxReconciler]] = (
    weakref.WeakKeyDictionary()
)


async def box_keeper(spawner: Any, hub_db: Callable[[], Any]) -> BoxReconciler:
    """Return this process's keeper, started; the first caller starts it for everybody, by its own settings.

    A failure is not kept: the next caller tries again.
    """
    loop = asyncio.get_running_loop()
    task = _keepers.get(loop)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = _keepers[loop] = loop.create_task(_start(spawner, hub_db), name="carme-box-start")
    return await asyncio.shield(task)


async def _start(spawner: Any, hub_db: Callable[[], Any]) -> BoxReconciler:
    gpus = await asyncio.to_thread(spawner.box_gpus)
    if not callable(spawner.profile_list):
        profiles = parse_profiles(spawner.profile_list, profile_field(spawner))
        check_types(gpus, {p.slug: set(p.gpus.types) for p in profiles if p.gpus is not None})
    spawner.log.info("GPUs to give out: %s", ", ".join(f"{gpu.id} ({gpu.type})" for gpu in gpus) or "none")
    keeper = BoxReconciler(
        Engine(connection(spawner.client_kwargs, spawner.tls_config)),
        gpus,
        hub_db,
        spawner.log,
        whose=(spawner.prefix, hub_identity(hub_db())),
        overcommit=(spawner.cpu_overcommit, spawner.memory_overcommit),
        grace=spawner.stop_grace,
        interval=spawner.look_interval,
    )
    await keeper.start()
    return keeper


def hub_identity(db: Any) -> str:
    """Return what tells the containers of this hub from another hub's: a digest of where its database is."""
    url = db.get_bind().url
    where = str(Path(url.database).resolve()) if url.drivername.startswith("sqlite") and url.database else ""
    return sha256(f"{url.render_as_string(hide_password=True)} {where}".encode()).hexdigest()[:16]


def ready_keeper() -> BoxReconciler | None:
    """Return the keeper where it has been started, without waiting."""
    with contextlib.suppress(RuntimeError):
        task = _keepers.get(asyncio.get_running_loop())
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
    return None


async def forget_keeper() -> None:
    """Stop the keeper and forget it; the next caller starts a new one. For tests that restart a hub in place."""
    task = _keepers.pop(asyncio.get_running_loop(), None)
    if task is not None:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await (await task).stop()
