"""Metrics of the calendar for Prometheus, computed at each scrape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carme_hub.domain.calendar.double_booking import double_booked
from carme_hub.domain.calendar.reservations import HOLDING, Reservation, State
from carme_hub.scrape import Scrape
from carme_hub.store.threads import in_store_thread

#: States that are counted; the number of ended bookings only grows.
_COUNTED = HOLDING | {State.DRAFT}


async def metrics(service: Any) -> Scrape:
    """Return the metrics of this moment."""
    calendar, health, nodes = service.calendar, service.health, service.slurm_view.nodes

    def read() -> tuple[Sequence[Reservation], int]:
        with calendar.store.reading(calendar.cluster) as reads:
            found = reads.in_states(_COUNTED)
        return found, double_booked((each for each in found if each.state in HOLDING), nodes)

    found, twice = await in_store_thread(read)
    scrape = Scrape("carme_reservations_")
    bookings = scrape.gauge("bookings", "Bookings that are not over, by state", ("state",))
    for state in _COUNTED:
        bookings.add_metric((state.value,), sum(each.state is state for each in found))
    active = sum(each.gpus for each in found if each.state is State.ACTIVE)
    scrape.value("gpus_booked_now", "GPUs of bookings that are active", active)
    broken = sum(bool(each.problem) for each in found)
    scrape.value("broken_promises", "Bookings that cannot be kept as they were promised", broken)
    scrape.value("double_booked_gpus", "GPUs that are booked twice at some moment", twice)
    drift = health.drift(calendar.clock())
    scrape.value("drift_seconds", "Time since Slurm's reservations were last equal to the calendar", drift)
    scrape.value("pass_seconds", "How long the last comparison with Slurm took", health.seconds)
    scrape.value("slurm_refusals", "Reservations that Slurm refused in the last comparison", health.refused)
    refusals = scrape.counter("refusals", "Requests that were refused", ("reason",))
    for reason, count in health.refusals.items():
        refusals.add_metric((reason,), count)
    return scrape
