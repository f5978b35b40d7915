"""Who changed what about GPU time, for whom and why: in the log always, as an event where a site collects those.

It hangs on the ledger's transactions: whichever door a write came through, it is told once, after it was committed.
"""

from __future__ import annotations

import json
import logging
import os
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from jupyter_events import EventLogger
from traitlets.config import Config

from carme_hub.accounting.audit import Written, by_people
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.paths import share_folder
from carme_hub.store.ledger import Committed

#: The event's name in its schema.
WRITTEN = "urn:carme-hub:gpu-time-written"
#: Characters of what could not be told that the log gets; the ledger has the rest.
_LONGEST = 2000


class Audit:
    """Tells what people wrote: to the log, to ``CarmeQuotas.audit_file``, and to the handlers of ``EventLogger``.

    Args:
        config: with the hub's own setting of ``EventLogger``. door: what the writer used, for the event.
    """

    def __init__(self, config: Config, settings: CarmeQuotas, log: Any, door: str) -> None:
        self._config, self._settings, self._log, self._door = config, settings, log, door
        self._events: EventLogger | None = None

    def __call__(self, done: Committed) -> None:
        """Tell what was committed. It stands in the ledger, so an event that cannot be written is logged, no more."""
        try:
            told = by_people(done)
        except Exception as error:  # noqa: BLE001 - who wrote would be told that it failed
            self._log.exception("No audit event for what was committed: %r %s", error, str(done)[:_LONGEST])
            return
        for each in told:
            said = json.dumps(dict(each.details), sort_keys=True, ensure_ascii=False)
            self._log.info("%s: %s %s", each.actor, each.action, said)
            try:
                self._emit(each)
            except Exception as error:  # noqa: BLE001 - a handler of the site can fail in any way
                self._log.exception("No audit event for %s by %s: %s %s", each.action, each.actor, error, said)

    def _emit(self, each: Written) -> None:
        if self._events is None:
            self._events = self._made()
        self._events.emit(
            schema_id=WRITTEN, data={"action": each.action, "actor": each.actor, "door": self._door, **each.details}
        )

    def _made(self) -> EventLogger:
        events = EventLogger(config=self._config)
        events.handlers = list(events.handlers or ())
        events.register_event_schema(share_folder() / "events" / "gpu-time-written.yaml")
        if self._settings.audit_file:
            events.register_handler(AuditFile(Path(self._settings.audit_file)))
        return events


class AuditFile(WatchedFileHandler):
    """A file of JSON lines that only its owner may read; several processes append to it, and it may be rotated."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        if os.geteuid() == 0 and os.fstat(descriptor).st_size == 0:
            # A command that root runs may be the first to write; the service has to go on with the file.
            folder = Path(self.baseFilename).parent.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
        return os.fdopen(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Let who emits know, in place of a line on stderr."""
        raise
