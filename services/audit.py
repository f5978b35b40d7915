"""Audit events: to a file of the site's, and to the handlers of its own ``EventLogger``."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from jupyter_events import EventLogger
from traitlets.config import Config

from carme_hub.paths import share_folder

#: Characters of what could not be told that the log gets; the database has the rest.
LONGEST = 2000


class Events:
    """Tells of what was committed. What a handler of the site does wrong is raised.

    Args:
        config: with the hub's own setting of ``EventLogger``. file: "" for none. schema: its file's name.
    """

    def __init__(self, config: Config, file: str, schema: str) -> None:
        self._config, self._file, self._schema = config, file, schema
        self._events: EventLogger | None = None

    def emit(self, schema: str, data: dict[str, Any]) -> None:
        """Tell of one thing."""
        if self._events is None:
            self._events = self._made()
        self._events.emit(schema_id=schema, data=data)

    def _made(self) -> EventLogger:
        events = EventLogger(config=self._config)
        events.handlers = list(events.handlers or ())
        events.register_event_schema(share_folder() / "events" / self._schema)
        if self._file:
            events.register_handler(AuditFile(Path(self._file)))
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
