"""Audit of the calendar: who changed which booking, and why, in the log and as events.

The reservation store calls it after each committed transaction, so each write is recorded once, through whichever
interface it came. Transitions by time (a booking begins, is used, ends) are left out; cancellations and releases are
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traitlets.config import Config

from carme_hub.audit import MAX_LOGGED, AuditEvents
from carme_hub.booking.context import ACTOR
from carme_hub.domain.calendar.reservations import Reservation, State

#: The event's name in its schema.
EVENT = "urn:carme-hub:booking-written"
#: States that are recorded although no person caused them.
_REPORTED = frozenset({State.CANCELLED, State.RELEASED})
_MAX_LENGTH = 500


class Audit:
    """Records writes in the log, in ``CarmeQuotas.audit_file``, and with the handlers of ``EventLogger``."""

    def __init__(self, config: Config, file: str, log: Any) -> None:
        self._log = log
        self._events = AuditEvents(config, file, "booking-written.yaml")

    def __call__(self, written: Sequence[Reservation]) -> None:
        """Record committed reservations. The write is done, so an event that cannot be written is only logged."""
        for each in written:
            if each.actor == ACTOR and each.state not in _REPORTED:
                continue
            data = _event(each)
            self._log.info("%s: booking %s of %s is %s: %s", each.actor, each.id, each.owner, each.state.value, data)
            try:
                self._events.emit(EVENT, data)
            except Exception as error:  # noqa: BLE001 - a handler of the site can fail in any way
                self._log.exception("No audit event for booking %s: %s %s", each.id, error, str(data)[:MAX_LOGGED])


def _event(one: Reservation) -> dict[str, Any]:
    taken = ((place.node, *gpus) for place in one.places for gpus in ((place.type, place.count), *place.also))
    places = ",".join(f"{node}:{type}:{count}" for node, type, count in taken)
    details = {
        "series": one.series,
        "account": one.account,
        "group": one.group,
        "places": places[:_MAX_LENGTH],
        "reason": one.reason[:_MAX_LENGTH],
        "problem": one.problem[:_MAX_LENGTH],
    }
    return {
        "action": "booked" if one.version == 1 else "changed",
        "actor": one.actor,
        "id": one.id,
        "kind": one.kind.value,
        "state": one.state.value,
        "version": one.version,
        "owner": one.owner,
        "title": one.title,
        "gpu_type": one.need.type,
        "gpus": one.gpus,
        "start": one.period.start,
        "end": one.period.end,
        **{name: said for name, said in details.items() if said},
    }
