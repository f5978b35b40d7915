"""Metrics of the calendar for Prometheus, computed at each scrape."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from carme_hub.domain.calendar.reservations import HOLDING, State
from carme_hub.store.threads import in_store_thread

#: States that are counted; the number of ended bookings only grows.
_COUNTED = HOLDING | {State.DRAFT}


async def text(service: Any) -> str:
    """Return the metrics in Prometheus' text format."""
    calendar, health = service.calendar, service.health

    def counted() -> tuple[dict[State, int], int, int]:
        with calendar.store.reading(calendar.cluster) as reads:
            found = reads.in_states(_COUNTED)
        states = {state: sum(each.state is state for each in found) for state in _COUNTED}
        active = sum(each.gpus for each in found if each.state is State.ACTIVE)
        return states, sum(bool(each.problem) for each in found), active

    states, broken, gpus = await in_store_thread(counted)
    registry = CollectorRegistry()

    def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"carme_reservations_{name}", about, labels, registry=registry)

    bookings = gauge("bookings", "Bookings that are not over, by state", ("state",))
    for state, count in states.items():
        bookings.labels(state.value).set(count)
    gauge("gpus_booked_now", "GPUs of bookings that are active").set(gpus)
    gauge("broken_promises", "Bookings that cannot be kept as they were promised").set(broken)
    now = calendar.clock()
    drift = health.drift(now)
    if drift is not None:
        gauge("drift_seconds", "Time since Slurm's reservations were last equal to the calendar").set(drift)
    gauge("pass_seconds", "How long the last comparison with Slurm took").set(health.seconds)
    gauge("slurm_refusals", "Reservations that Slurm refused in the last comparison").set(health.refused)
    refusals = Counter("carme_reservations_refusals", "Requests that were refused", ("reason",), registry=registry)
    for reason, count in health.refusals.items():
        refusals.labels(reason).inc(count)
    return generate_latest(registry).decode()
