"""Who changed which booking, and why: in the log always, as an event where a site collects those.

It hangs on the calendar's transactions: whichever door a write came through, it is told once, after it was committed.
What comes by itself with the time (a booking begins, is used, ends) is no news; that one was taken away is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traitlets.config import Config

from carme_hub.booking.context import ACTOR
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.services.audit import MAX_LOGGED, AuditEvents

#: The event's name in its schema.
EVENT = "urn:carme-hub:booking-written"
#: What is told although nobody did it.
_REPORTED = frozenset({State.CANCELLED, State.RELEASED})
_MAX_LENGTH = 500


class Audit:
    """Tells what was written: to the log, to ``CarmeQuotas.audit_file``, and to the handlers of ``EventLogger``."""

    def __init__(self, config: Config, file: str, log: Any) -> None:
        self._log = log
        self._events = AuditEvents(config, file, "booking-written.yaml")

    def __call__(self, written: Sequence[Reservation]) -> None:
        """Tell what was committed. It stands in the calendar, so an event that cannot be written is logged, no more."""
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
