"""Who changed what about GPU time, for whom and why: in the log always, as an event where a site collects those.

It hangs on the ledger's transactions: whichever door a write came through, it is told once, after it was committed.
"""

from __future__ import annotations

import json
from typing import Any

from traitlets.config import Config

from carme_hub.accounting.audit import AuditRecord, by_people
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.services.audit import LONGEST, Events
from carme_hub.store.ledger.writes import CommittedChanges

#: The event's name in its schema.
WRITTEN = "urn:carme-hub:gpu-time-written"


class Audit:
    """Tells what people wrote: to the log, to ``CarmeQuotas.audit_file``, and to the handlers of ``EventLogger``.

    Args:
        config: with the hub's own setting of ``EventLogger``. door: what the writer used, for the event.
    """

    def __init__(self, config: Config, settings: CarmeQuotas, log: Any, door: str) -> None:
        self._log, self._door = log, door
        self._events = Events(config, settings.audit_file, "gpu-time-written.yaml")

    def __call__(self, done: CommittedChanges) -> None:
        """Tell what was committed. It stands in the ledger, so an event that cannot be written is logged, no more."""
        try:
            told = by_people(done)
        except Exception as error:  # noqa: BLE001 - who wrote would be told that it failed
            self._log.exception("No audit event for what was committed: %r %s", error, str(done)[:LONGEST])
            return
        for each in told:
            said = json.dumps(dict(each.details), sort_keys=True, ensure_ascii=False)
            self._log.info("%s: %s %s", each.actor, each.action, said)
            try:
                self._emit(each)
            except Exception as error:  # noqa: BLE001 - a handler of the site can fail in any way
                self._log.exception("No audit event for %s by %s: %s %s", each.action, each.actor, error, said)

    def _emit(self, each: AuditRecord) -> None:
        self._events.emit(WRITTEN, {"action": each.action, "actor": each.actor, "door": self._door, **each.details})
