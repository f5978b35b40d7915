"""A reservations service whose answers a test defines, and the command line that uses it, in one process.

Requests and answers use the service's own models, so that test and command cannot agree on anything else.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ValidationError

from carme_hub.services.reservations.rest import models, queries

from .forged_http import ForgedHandler, ForgedServer, run, serving

__all__ = ["ID", "ForgedCalendar", "at", "booking", "calendar", "commands", "conflict", "run", "taken"]

SECRET = "of-alice"
ID = "0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> int:
    """Return the epoch seconds of a time in Berlin."""
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp())


def booking(**changes: Any) -> dict[str, Any]:
    """Return a booking as the service returns it."""
    known: dict[str, Any] = {
        **{"id": ID, "kind": "booking", "state": "confirmed", "title": "ML class", "owner": "alice"},
        **{"account": "physics", "gpu_type": "a100", "gpus": 1, "seats": 4, "total": 4, "zone": "Europe/Berlin"},
        **{"start": at("2026-12-01 09:00"), "end": at("2026-12-01 11:00"), "series": "", "occurrence": ""},
        **{"users": [], "group": "course-ml", "everybody": False, "profile": "a100", "waits": False, "problem": ""},
        "places": [{"node": "gpu1", "gpu_type": "a100", "gpus": 4, "seats": 4, "whole": False}],
        **{"reason": "", "actor": "alice", "created": at("2026-11-21 10:00"), "changed": 0, "used": 0, "ended": 0},
        **{"version": 3, "hidden": False, "mine": True, "invited": False, "may": ["move", "cancel"]},
        **{"amount": 8 * 3_600_000, "slurm": ["carme-0f3a9d4c5b6e4f80-0"]},
    }
    return models.BookingOut(**{**known, **changes}).model_dump(mode="json")


def conflict(day: str = "2026-12-01", **changes: Any) -> dict[str, Any]:
    """Return a conflict of the class on a day."""
    known: dict[str, Any] = {"start": at(f"{day} 09:00"), "end": at(f"{day} 11:00"), "occurrence": f"{day}T09:00:00"}
    return models.ConflictOut(**{"times": [], "seats": 0, "types": [], **known, **changes}).model_dump(mode="json")


def taken(*conflicts: dict[str, Any]) -> tuple[int, Any]:
    said = {"error": "slot-taken", "message": "These GPUs are not free at that time. Nothing was booked."}
    return 409, {**said, "conflicts": [*conflicts]}


class ForgedCalendar(ForgedServer):
    """Answers as the reservations service does, from a table of method and path; it records the requests."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.keys: list[str] = []
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}

    def answer_with(self, method: str, path: str, *bookings: dict[str, Any]) -> None:
        """Answer with these bookings."""
        self.answers[method, path] = (200, {"at": 0, "bookings": [*bookings]})

    @property
    def last_body(self) -> Any:
        """The body of the last request."""
        return self.requests[-1][3]


def _model(method: str, path: str) -> type[BaseModel] | None:
    """Return the model of the body, or of the query of a GET."""
    if method == "PATCH":
        return models.MoveIn
    queried: dict[str, type[BaseModel]] = {"bookings": queries.BookingsQuery, "free": queries.FreeQuery}
    taken: dict[str, type[BaseModel]] = {
        "bookings": models.BookIn,
        "check": models.CheckIn,
        "cancel": models.CancelIn,
        "release": models.ReleaseIn,
        "decision": models.DecisionIn,
        "maintenance": models.MaintenanceIn,
    }
    return queried.get(path) if method == "GET" else taken[path.rpartition("/")[2]]


class _Handler(ForgedHandler):
    server: ForgedCalendar

    def _answer(self) -> None:
        body = self.body()
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/services/reservations/api/v1/")
        query = dict(parse_qsl(parts.query))
        self.server.requests.append((self.command, path, query, body))
        self.server.keys.append(self.headers.get("Idempotency-Key", ""))
        nothing = (404, {"error": "unknown", "message": "There is no such booking."})
        status, said = self.server.answers.get((self.command, path), nothing)
        if self.headers["Authorization"] != f"token {SECRET}":
            status, said = 401, {"error": "unauthorized", "message": "Log in."}
        if self.command != "GET" and not self.headers.get("Idempotency-Key"):
            status, said = 400, {"error": "bad-request", "message": "A write needs the header Idempotency-Key."}
        if (model := _model(self.command, path)) is not None:
            try:
                model.model_validate_json(json.dumps(body)) if body else model.model_validate(query)
            except ValidationError as error:
                status, said = 400, {"error": "bad-request", "message": str(error)}
        self.say(status, said)

    do_GET = do_POST = do_PATCH = _answer


@pytest.fixture
def calendar(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgedCalendar]:
    with serving(ForgedCalendar()) as calendar:
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", SECRET)
        monkeypatch.setenv("JUPYTERHUB_API_URL", f"{calendar.address}/hub/api")
        monkeypatch.delenv("JUPYTERHUB_PUBLIC_HUB_URL", raising=False)
        monkeypatch.setenv("TZ", "Europe/Berlin")
        yield calendar


def commands(text: str) -> dict[str, list[str]]:
    """Return the commands of an answer by the line above each."""
    return {
        above.strip(): shlex.split(line) for above, line in pairwise(text.splitlines()) if line.startswith("    carme")
    }
