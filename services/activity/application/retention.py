"""Deletes what is older than the settings keep, once an hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from carme_hub.activity.settings import DAY, CarmeActivity
from carme_hub.errors import StoreError
from carme_hub.store.activity import ActivityStore
from carme_hub.store.threads import in_store_thread

EVERY = 3600.0


async def keep_within(
    settings: CarmeActivity,
    store: ActivityStore,
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    clock: Callable[[], float] = time.time,
) -> None:
    """Delete old minutes and hours, for ever."""
    while True:
        now = clock()
        try:
            await in_store_thread(store.prune, now - settings.keep_minutes * DAY, now - settings.keep_hours * DAY)
        except StoreError as error:
            log.warning("%s It is tried again in an hour.", error)
        await asyncio.sleep(EVERY)
