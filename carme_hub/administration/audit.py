"""Reports each act of an administrator to the log, to ``CarmeQuotas.audit_file`` and to handlers of ``EventLogger``."""

from __future__ import annotations

import json
from typing import Any

from traitlets.config import Config

from carme_hub.audit import MAX_LOGGED, AuditEvents
from carme_hub.domain.administration.acts import Act

#: The event's name in its schema.
EVENT = "urn:carme-hub:administration"
_MAX_LENGTH = 500


class Audit:
    """Called with each act once it is known what came of it. The database has the act already."""

    def __init__(self, config: Config, file: str, log: Any) -> None:
        self._log = log
        self._events = AuditEvents(config, file, "administration.yaml")

    def __call__(self, act: Act) -> None:
        """Report an act; an event that cannot be written is only logged."""
        details = {name: text[:_MAX_LENGTH] for name, text in act.details.items() if text}
        data = {
            "action": act.action,
            "actor": act.actor.name,
            "door": act.actor.interface,
            "target": act.target,
            "reason": act.reason,
            "outcome": act.outcome or "not known",
            **({"details": details} if details else {}),
        }
        said = json.dumps(data, sort_keys=True, ensure_ascii=False)
        self._log.info("%s: %s %s", act.actor.name, act.action, said)
        try:
            self._events.emit(EVENT, data)
        except Exception as error:  # noqa: BLE001 - a handler of the site can fail in any way
            self._log.exception(
                "No audit event for %s by %s: %s %s", act.action, act.actor.name, error, said[:MAX_LOGGED]
            )
