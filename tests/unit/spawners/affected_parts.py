"""A session and a maintenance window that meet."""

from __future__ import annotations

from typing import Any

from booked_parts import HOUR, NOW, booking, place

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Kind, Reservation
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState

OPTIONS = {"profile": "gpu", "gpus": 1, "time_minutes": 240}
ID = "5f0d8f0e-0000-4000-8000-000000000001"


def window(start: float = 2, hours: float = 3, nodes: tuple[str, ...] = ("n1",), **more: Any) -> Reservation:
    places = tuple(place(name, 4, 1, whole=True) for name in nodes)
    given = {"kind": Kind.MAINTENANCE, "title": "New disks", "account": "", "group": "", "need": Need("a100", 0, 1)}
    return booking("9", start, hours, places, **{**given, **more})


def session(**changes: Any) -> Session:
    request = Request("gpu", "base", Gpus("a100", 1), 2, 4096, 240, account="teaching")
    given = {"job_id": 1, "started": NOW - HOUR, **changes}
    return Session(ID, "lab", "sam", "", request, SessionState.RUNNING, NOW - HOUR).replace(**given)
