"""Counts how starts end and why, traces them, and names session and user in what is logged meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from jupyterhub.spawner import SpawnException

from carme_hub import metrics
from carme_hub.errors import Refused
from carme_hub.logs import about
from carme_hub.traces import traced_start


def observed_start(start: Callable[[Any], Coroutine[Any, Any, str]]) -> Callable[[Any], Coroutine[Any, Any, str]]:
    """Return a spawner's ``start`` that is counted; a start that was cancelled, as by its user, is not."""

    @functools.wraps(start)
    async def observed(spawner: Any) -> str:
        session = spawner.get_state().get("session", "")
        with about(user=spawner.user.name, session=session), traced_start(session):
            try:
                url = await start(spawner)
            except SpawnException as error:
                outcome = metrics.REFUSED if isinstance(error.__cause__, Refused) else metrics.FAILED
                metrics.STARTS.labels(outcome, error.reason or "other").inc()
                raise
            except Exception as error:
                metrics.STARTS.labels(metrics.FAILED, type(error).__name__).inc()
                raise
            metrics.STARTS.labels(metrics.STARTED, "").inc()
            return url

    return observed
