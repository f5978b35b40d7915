"""Audit events: written to the site's audit file and to the handlers of its own ``EventLogger``.

The audit modules of the services and of administration emit through ``AuditEvents``, once for each committed change.
"""

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

#: Characters of a change without an audit event that go to the log; the database has the rest.
MAX_LOGGED = 2000


class AuditEvents:
    """Emits events by a jupyter_events ``EventLogger``. An error of one of the site's handlers is raised.

    Args:
        config: the configuration, with the hub's own setting of ``EventLogger``. file: the audit file, "" for none.
        schema: file name of the event schema.
    """

    def __init__(self, config: Config, file: str, schema: str) -> None:
        self._config, self._file, self._schema = config, file, schema
        self._logger: EventLogger | None = None

    def emit(self, schema: str, data: dict[str, Any]) -> None:
        """Emit one event."""
        if self._logger is None:
            self._logger = self._create_logger()
        self._logger.emit(schema_id=schema, data=data)

    def _create_logger(self) -> EventLogger:
        logger = EventLogger(config=self._config)
        logger.handlers = list(logger.handlers or ())
        logger.register_event_schema(share_folder() / "events" / self._schema)
        if self._file:
            logger.register_handler(AuditFile(Path(self._file)))
        return logger


class AuditFile(WatchedFileHandler):
    """A file of JSON lines that only its owner may read. Several processes append to it; it may be rotated."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        if os.geteuid() == 0 and os.fstat(descriptor).st_size == 0:
            # A command that root runs may be the first writer. The service must be able to append to the file later.
            folder = Path(self.baseFilename).parent.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
        return os.fdopen(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Raise the error to the caller of ``emit``; logging would print it on stderr."""
        raise
