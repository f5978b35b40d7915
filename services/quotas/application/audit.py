"""Audit of GPU time: who changed what, for whom and why, in the log, and as an event if the site collects events.

The ledger's transactions call ``Audit`` after each commit, so that a change is reported once, whether it came from a
page, from REST or from a command.
"""

from __future__ import annotations

import json
from typing import Any

from traitlets.config import Config

from carme_hub.accounting.audit import AuditRecord, audit_records
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.audit import MAX_LOGGED, AuditEvents
from carme_hub.store.ledger.writes import CommittedChanges

#: The event's name in its schema.
WRITTEN = "urn:carme-hub:gpu-time-written"


class Audit:
    """Reports changes by people to the log, to ``CarmeQuotas.audit_file``, and to the handlers of ``EventLogger``.

    Args:
        config: the configuration, with the hub's own setting of ``EventLogger``. interface: what the writer used
            ("service", "command"); the event has it as ``door``.
    """

    def __init__(self, config: Config, settings: CarmeQuotas, log: Any, interface: str) -> None:
        self._log, self._interface = log, interface
        self._events = AuditEvents(config, settings.audit_file, "gpu-time-written.yaml")

    def __call__(self, done: CommittedChanges) -> None:
        """Report a committed change. The ledger has it, so an event that cannot be written is only logged."""
        try:
            records = audit_records(done)
        except Exception as error:  # noqa: BLE001 - the writer would see an error, and the change is committed
            self._log.exception("No audit event for what was committed: %r %s", error, str(done)[:MAX_LOGGED])
            return
        for each in records:
            said = json.dumps(dict(each.details), sort_keys=True, ensure_ascii=False)
            self._log.info("%s: %s %s", each.actor, each.action, said)
            try:
                self._emit(each)
            except Exception as error:  # noqa: BLE001 - a handler of the site can fail in any way
                self._log.exception("No audit event for %s by %s: %s %s", each.action, each.actor, error, said)

    def _emit(self, each: AuditRecord) -> None:
        self._events.emit(
            WRITTEN, {"action": each.action, "actor": each.actor, "door": self._interface, **each.details}
        )
