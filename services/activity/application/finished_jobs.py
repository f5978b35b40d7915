"""Reads jobs that have ended every few minutes, and deletes those that are older than the setting keeps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from carme_hub.activity.finished_jobs import FinishedJobs
from carme_hub.activity.settings import DAY, CarmeActivity
from carme_hub.errors import CarmeError
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.threads import in_store_thread

#: Seconds between two looks.
EVERY = 300.0


async def collect_for_ever(
    settings: CarmeActivity,
    finished: FinishedJobs,
    store: FinishedJobStore,
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    clock: Callable[[], float] = time.time,
) -> None:
    """Collect finished jobs, for ever; an error is logged once, and the next look makes up for it."""
    problem = ""
    while True:
        try:
            await finished.collect()
            await in_store_thread(store.prune, clock() - settings.keep_jobs * DAY)
            problem = ""
        except CarmeError as error:
            if str(error) != problem:
                log.warning("Finished jobs are not read now, and will be later: %s", error)
            problem = str(error)
        await asyncio.sleep(EVERY)
