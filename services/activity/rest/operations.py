"""REST below ``api/v1/``: one table of operations, from which URL handlers and the OpenAPI document are made."""

from __future__ import annotations

from typing import Any

from carme_hub.services.activity.rest import finished, models, models_finished, read
from carme_hub.services.activity.rest.report import ReportHandler
from carme_hub.services.activity.scopes import READ, READ_ALL, UNUSED
from carme_hub.services.fields import Error
from carme_hub.services.openapi import Operation, document
from carme_hub.services.rest import ROOT, Call, RestHandler, Route, url_handlers

#: Version of the interface: the first number changes with an incompatible change.
VERSION = "1.1"
_ID = {"id": {"type": "string", "pattern": models.ID}}
_READ = (READ, READ_ALL)
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def openapi(call: Call) -> dict[str, Any]:
    """Return this document."""
    return openapi_document(call.service.prefix)


def _get(path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    return Operation("GET", ROOT + path, summary, *rest, **more)


ROUTES: tuple[Route, ...] = (
    Route(
        _get("sessions", "Open sessions with the last hour", _READ, models.SessionsOut, query=read.SessionsQuery),
        read.sessions,
    ),
    Route(
        _get(
            "sessions/{id}",
            "What a session used",
            _READ,
            models.SessionOut,
            query=read.CurveQuery,
            path_parameters=_ID,
            errors=(404,),
        ),
        read.session,
    ),
    Route(
        _get(
            "jobs", "Jobs that have ended, and advice", _READ, models_finished.FinishedJobsOut, query=finished.JobsQuery
        ),
        finished.jobs,
    ),
    Route(
        _get(
            "unused",
            "What accounts did not use, by week",
            (READ, UNUSED),
            models_finished.AccountsUnusedOut,
            query=finished.UnusedQuery,
        ),
        finished.unused,
    ),
    Route(_get("metrics", "Metrics for Prometheus", (READ_ALL,), media_type=_TEXT), read.prometheus),
    Route(_get("openapi.json", "This document", public=True, media_type="application/json"), openapi),
)


def openapi_document(prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    return document("What jobs use", VERSION, prefix, [route.operation for route in ROUTES], Error)


API: list[Any] = [
    (ROOT + r"sessions/([0-9a-f-]{36})/minutes", ReportHandler),
    *url_handlers(ROUTES, RestHandler),
]
