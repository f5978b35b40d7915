"""Reservations, nodes and jobs for tests of what a booking means to a session."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.form.slots import Bookings, CalendarView

#: Wednesday 18 November 2026, 10:00 UTC.
NOW = 1_795_000_000 // 3600 * 3600
HOUR = 3600
GPU: dict[str, Any] = {
    "slug": "gpu",
    "display_name": "GPU",
    "gpus": {"types": {"a100": 4, "h100": 2}, "max": 4},
    "cpus": {"max": 16, "default": 2},
    "memory_gib": {"max": 64, "default": 4},
    "time_hours": {"max": 8, "default": 4},
}


def place(node: str = "n1", count: int = 2, seats: int = 2, *, whole: bool = False, cpus: int = 0) -> Place:
    return Place(node, "a100", count, seats, whole, cpus or 8 * count)


def booking(
    id: str = "1", start: float = -1, hours: float = 2, places: tuple[Place, ...] = (), **more: Any
) -> Reservation:
    """Return a booking of a class of two seats that began an hour ago."""
    begin = NOW + int(start * HOUR)
    places = places or (place(),)
    given: dict[str, Any] = {
        "cluster": "lab",
        "owner": "tina",
        "account": "teaching",
        "title": "Physics",
        "need": Need("a100", 1, sum(each.seats for each in places)),
        "period": Period(begin, begin + int(hours * HOUR)),
        "places": places,
        "state": State.ACTIVE if start <= 0 else State.CONFIRMED,
        "created": 0.0,
        "group": "class",
        "zone": "Europe/Berlin",
        **more,
    }
    return Reservation(f"{id * 8}-0000-4000-8000-000000000000", **given)


def node(name: str = "n1", used: int = 0, **more: Any) -> Node:
    given: dict[str, Any] = {"partitions": ("gpu",), "cpus": 32, "memory_mib": 256 * 1024, "gpus": {"a100": 4}, **more}
    return Node(name, "mixed" if used else "idle", True, gpus_used={"a100": used}, **given)


def job(id: int = 1, gpus: int = 1, nodes: tuple[str, ...] = ("n1",), ends: float = 1, **more: Any) -> Job:
    """Return a job that runs and ends in so many hours by its time limit."""
    given: dict[str, Any] = {
        "phase": Phase.ACTIVE,
        "start": NOW - HOUR,
        "end": NOW + int(ends * HOUR),
        "time_limit": 60 + int(ends * 60),
        "gpus": Gpus("a100", gpus),
        "nodes": nodes,
        **more,
    }
    return Job(id, f"job{id}", "ada", "RUNNING", **given)


def cluster(*nodes: Node, jobs: tuple[Job, ...] = ()) -> Cluster:
    return Cluster(nodes or (node(), node("n2")), jobs, seen=NOW)


def offer(
    *known: Reservation,
    user: str = "sam",
    groups: tuple[str, ...] = ("class",),
    accounts: tuple[str, ...] | None = ("teaching",),
    profiles: tuple[dict[str, Any], ...] = (GPU,),
    there: Cluster | None = None,
    now: float = NOW,
    look: CalendarView | None = None,
    **more: Any,
) -> Offer:
    """Return what a student of the class may choose from while these reservations are known."""
    there = there or cluster()
    bookings = Bookings(user, frozenset(groups), accounts, look or CalendarView(known, was_read=True), there, now)
    return Offer(parse_profiles(profiles), accounts, {"base": ""}, cluster=there, bookings=bookings, **more)
