"""REST below ``api/v1/``: one table of operations, from which URL handlers and the OpenAPI document are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carme_hub.services.fields import Error
from carme_hub.services.openapi import Operation, document
from carme_hub.services.reservations.application import feed, ical
from carme_hub.services.reservations.rest import models, queries, read, write
from carme_hub.services.reservations.rest.base import Call, RestHandler
from carme_hub.services.reservations.scopes import ADMIN, READ, READ_ALL, WRITE
from carme_hub.services.rest import ROOT, Route, url_handlers

#: Version of the interface: the first number changes with an incompatible change.
VERSION = "1.0"
_ID = {"id": {"type": "string", "pattern": models.ID}}
_SECRET = {"secret": {"type": "string", "pattern": feed.PATTERN}}
_ICS = ical.MEDIA
#: A wider scope includes reading: a token may have only the wider one.
_READ = (READ, READ_ALL, WRITE, ADMIN)
#: A token for reading is not enough for writing.
_WRITE = (WRITE, ADMIN)


async def openapi(call: Call) -> dict[str, Any]:
    """Return this document."""
    return openapi_document(call.service.prefix)


def _get(path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    return Operation("GET", ROOT + path, summary, *rest, **more)


def _write(method: str, path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    return replace(Operation(method, ROOT + path, summary, *rest, **more), idempotent=True)


def _change(method: str, path: str, summary: str, takes: Any, scopes: tuple[str, ...] = _WRITE) -> Operation:
    return _write(
        method,
        path,
        summary,
        scopes,
        m.BookingsOut,
        takes,
        path_parameters=_ID,
        errors=(404,),
        error_bodies={409: m.TakenOut},
    )


m, q = models, queries
_CHECK = Operation("POST", ROOT + "check", "Preview a booking; nothing is written", _READ, m.CheckOut, m.CheckIn)
ROUTES: tuple[Route, ...] = (
    Route(
        _get("bookings", "Bookings by their start", _READ, m.BookingsOut, query=q.BookingsQuery, errors=(409,)),
        read.bookings,
    ),
    Route(
        _write("POST", "bookings", "Book GPUs", _WRITE, m.BookingsOut, m.BookIn, error_bodies={409: m.TakenOut}),
        write.book,
    ),
    Route(replace(_CHECK, errors=(404,)), write.check),
    # Before the path without the suffix, which would match it as an id.
    Route(
        _get(
            "bookings/{id}.ics", "One booking as iCalendar", _READ, media_type=_ICS, path_parameters=_ID, errors=(404,)
        ),
        read.booking_file,
    ),
    Route(_get("bookings/{id}", "One booking", _READ, m.BookingOut, path_parameters=_ID, errors=(404,)), read.booking),
    Route(_change("PATCH", "bookings/{id}", "Move or change a booking", m.MoveIn), write.move),
    Route(_change("POST", "bookings/{id}/cancel", "Cancel a booking", m.CancelIn), write.cancel),
    Route(_change("POST", "bookings/{id}/release", "Give back an active booking", m.ReleaseIn), write.release),
    Route(
        _change("POST", "bookings/{id}/decision", "Approve or deny a booking", m.DecisionIn, (ADMIN,)),
        write.decide,
    ),
    Route(
        _write("POST", "maintenance", "Set a maintenance window", (ADMIN,), m.MaintenanceOut, m.MaintenanceIn),
        write.maintain,
    ),
    Route(
        _get("free", "Free GPUs over time", _READ, m.FreeOut, query=q.FreeQuery, errors=(409,)),
        read.free,
    ),
    Route(_get("supply", "The GPUs that can be booked", _READ, m.SupplyOut), read.supply),
    Route(
        _get("words", "The next 24 hours in sentences", _READ, m.WordsOut, query=q.WordsQuery, errors=(409,)),
        read.sentences,
    ),
    Route(_get("feed", "Whether I have a feed", _READ, m.FeedOut), read.has_feed),
    Route(
        Operation("POST", ROOT + "feed", "Make a new secret address of my feed", _WRITE, m.FeedOut, m.FeedIn),
        write.make_feed,
    ),
    Route(Operation("DELETE", ROOT + "feed", "End my feed", _WRITE, m.FeedOut), write.revoke_feed),
    Route(
        _get(
            "feed/{secret}.ics",
            "A feed by its secret",
            public=True,
            media_type=_ICS,
            path_parameters=_SECRET,
            errors=(404,),
        ),
        read.feed,
    ),
    Route(
        _get(
            "metrics",
            "Metrics for Prometheus",
            (READ_ALL, ADMIN),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        ),
        read.prometheus,
    ),
    Route(_get("health", "Whether Slurm keeps the calendar", response=m.HealthOut, public=True), read.health),
    Route(_get("openapi.json", "This document", public=True, media_type="application/json"), openapi),
)


def openapi_document(prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    return document("GPU calendar", VERSION, prefix, [route.operation for route in ROUTES], Error)


API: list[Any] = url_handlers(ROUTES, RestHandler)
