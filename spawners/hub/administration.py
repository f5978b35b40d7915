"""The hub's part of administration: where its acts are reported, and times as its users read them."""

from __future__ import annotations

import logging
import time
from typing import Any

from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.administration.administration import Administration
from carme_hub.administration.audit import Audit
from carme_hub.spawners.form.durations import clock
from carme_hub.store.administration.store import AdministrationStore


async def administration_of(engine: Any, cluster: str, config: Config, log: logging.Logger) -> Administration:
    """Return what administrators have done, as the database has it."""
    report = Audit(config, CarmeQuotas(config=config, log=log).audit_file, log)
    found = Administration(AdministrationStore(engine, cluster), report, lambda at: clock(at, time.time()))
    await found.load()
    return found
