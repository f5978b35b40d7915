"""The engine and the reconciler that all CarmeDockerSpawners of one hub share."""

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
from carme_hub.spawners.docker.reconciler import ContainerReconciler

_reconcilers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[ContainerReconciler]] = (
    weakref.WeakKeyDictionary()
)


async def container_reconciler(spawner: Any, hub_db: Callable[[], Any]) -> ContainerReconciler:
    """Return this process's reconciler, started; the first caller starts it, by its own settings.

    A failure is not cached: the next caller tries again.
    """
    loop = asyncio.get_running_loop()
    task = _reconcilers.get(loop)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = _reconcilers[loop] = loop.create_task(_start(spawner, hub_db), name="carme-box-start")
    return await asyncio.shield(task)


async def _start(spawner: Any, hub_db: Callable[[], Any]) -> ContainerReconciler:
    gpus = await asyncio.to_thread(spawner.box_gpus)
    if not callable(spawner.profile_list):
        profiles = parse_profiles(spawner.profile_list, profile_field(spawner))
        check_types(gpus, {p.slug: set(p.gpus.types) for p in profiles if p.gpus is not None})
    spawner.log.info("GPUs of this machine: %s", ", ".join(f"{gpu.id} ({gpu.type})" for gpu in gpus) or "none")
    reconciler = ContainerReconciler(
        Engine(connection(spawner.client_kwargs, spawner.tls_config)),
        gpus,
        hub_db,
        spawner.log,
        whose=(spawner.prefix, hub_identity(hub_db())),
        overcommit=(spawner.cpu_overcommit, spawner.memory_overcommit),
        grace=spawner.stop_grace,
        interval=spawner.look_interval,
    )
    await reconciler.start()
    return reconciler


def hub_identity(db: Any) -> str:
    """Return a digest of the database's URL, by which this hub's containers differ from another hub's."""
    url = db.get_bind().url
    where = str(Path(url.database).resolve()) if url.drivername.startswith("sqlite") and url.database else ""
    return sha256(f"{url.render_as_string(hide_password=True)} {where}".encode()).hexdigest()[:16]


def started_reconciler() -> ContainerReconciler | None:
    """Return the reconciler if it has been started, without waiting."""
    with contextlib.suppress(RuntimeError):
        task = _reconcilers.get(asyncio.get_running_loop())
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
    return None


async def stop_reconciler() -> None:
    """Stop the reconciler; the next caller starts a new one. For tests that restart a hub in place."""
    task = _reconcilers.pop(asyncio.get_running_loop(), None)
    if task is not None:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await (await task).stop()
