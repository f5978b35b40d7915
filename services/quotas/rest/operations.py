"""The table of REST operations below ``api/v1/``, from which the handlers and the OpenAPI document are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carme_hub.services.fields import Error
from carme_hub.services.openapi import Operation, document
from carme_hub.services.quotas.rest import admin, models, models_replay, queries, read, slurm_limits, write
from carme_hub.services.quotas.rest.base import ROOT, Call, RestHandler, Route
from carme_hub.services.quotas.rest.models_slurm_limits import DriftOut
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL, READ_SESSION
from carme_hub.services.rest import url_handlers

#: Version of the interface: the first number changes when something is removed.
VERSION = "1.0"
_CSV = "text/csv; charset=utf-8"
_REQUEST = {"id": {"type": "string", "pattern": "^[0-9a-f]{16}$"}}
_ANOMALY = {"id": {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}}
#: A wider scope includes reading: a token may have the wider scope alone.
_READ = (READ, READ_ALL, MANAGE, GRANT, POLICY)
#: A token for reading does not allow writing.
_MANAGE = (MANAGE, GRANT)


async def openapi(_call: Call) -> dict[str, Any]:
    """Return the OpenAPI document."""
    return openapi_document(_call.service.prefix)


def _get(path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    return Operation("GET", ROOT + path, summary, *rest, **more)


def _write(method: str, path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    return replace(Operation(method, ROOT + path, summary, *rest, **more), idempotent=True)


m, q = models, queries
ROUTES: tuple[Route, ...] = (
    Route(_get("standing", "Balances and windows of my accounts", _READ, m.StandingOut), read.standing),
    Route(_get("statement", "Entries, newest first", _READ, m.StatementOut, query=q.StatementQuery), read.statement),
    Route(
        _get("statement.csv", "All entries as CSV", _READ, media_type=_CSV, query=q.StatementCsvQuery),
        read.statement_file,
    ),
    Route(
        _get("accounts", "The accounts that I own, or all", _READ, m.AccountsOut, query=q.AccountsQuery),
        read.accounts,
    ),
    Route(_write("POST", "grants", "Give GPU time", (GRANT,), m.WrittenOut, m.GrantIn, errors=(404,)), write.grant),
    Route(
        _write("POST", "transfers", "Move GPU time", _MANAGE, m.WrittenOut, m.TransferIn, errors=(404,)),
        write.transfer,
    ),
    Route(
        _write("POST", "corrections", "Put a mistake right", (GRANT,), m.WrittenOut, m.CorrectionIn, errors=(404,)),
        write.correct,
    ),
    Route(_get("requests", "Requests for GPU time", _READ, m.RequestsOut, query=q.RequestsQuery), read.requests),
    Route(_write("POST", "requests", "Ask for more GPU time", _MANAGE, m.RequestOut, m.RequestIn), write.ask),
    Route(
        _write(
            "POST",
            "requests/{id}/decision",
            "Approve or deny a request",
            _MANAGE,
            m.RequestOut,
            m.DecisionIn,
            path_parameters=_REQUEST,
            errors=(404,),
        ),
        write.answer,
    ),
    Route(
        Operation("POST", ROOT + "price", "What a choice costs; nothing is written", _READ, m.PriceOut, m.AskIn),
        read.price,
    ),
    Route(
        _get("remaining", "Time left of a session", (READ_SESSION, *_READ), m.RemainingOut, query=q.RemainingQuery),
        read.remaining,
    ),
    Route(_get("report", "Use of a month", _READ, m.ReportOut, query=q.ReportQuery), read.report),
    Route(_get("report.csv", "Use of a month as CSV", _READ, media_type=_CSV, query=q.ReportQuery), read.report_file),
    Route(
        _get("anomalies", "What waits for a person", (READ_ALL, GRANT), m.AnomaliesOut, query=q.AnomaliesQuery),
        admin.anomalies,
    ),
    Route(
        _write(
            "POST",
            "anomalies/{id}/decision",
            "Charge for an anomaly, or not",
            (GRANT,),
            m.AnomalyOut,
            m.SettleIn,
            path_parameters=_ANOMALY,
            errors=(404,),
        ),
        admin.decide,
    ),
    Route(
        _get("reconciliation", "The last comparison with Slurm", (READ_ALL, GRANT, POLICY), m.ReconciliationOut),
        admin.reconciliation,
    ),
    Route(
        _write("POST", "reconciliation", "Compare with Slurm now", (GRANT,), m.ReconciliationOut, m.ReconcileIn),
        admin.reconcile,
    ),
    Route(_write("POST", "settle", "Settle now", (GRANT,), m.SettledOut, m.SettleNowIn), admin.settle),
    Route(
        _get("mirror", "Slurm's own limits against the policy", (READ_ALL, GRANT, POLICY), DriftOut),
        slurm_limits.mirror,
    ),
    Route(_get("policy", "The policy in force", (POLICY, READ_ALL, GRANT), m.PolicyOut), admin.policy),
    Route(_write("PUT", "policy", "Switch a policy on", (POLICY,), m.PolicyOut, m.PolicyIn), admin.set_policy),
    Route(
        Operation(
            "POST",
            ROOT + "replay",
            "Try a policy on what was used",
            (POLICY,),
            models_replay.ReplayOut,
            models_replay.ReplayIn,
        ),
        admin.replay,
    ),
    Route(
        _get("metrics", "Metrics for Prometheus", (READ_ALL,), media_type="text/plain; version=0.0.4; charset=utf-8"),
        admin.prometheus,
    ),
    Route(_get("health", "Whether the service settles", response=m.HealthOut, public=True), admin.health),
    Route(_get("openapi.json", "This document", public=True, media_type="application/json"), openapi),
)


def openapi_document(prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    return document("GPU time", VERSION, prefix, [route.operation for route in ROUTES], Error)


API: list[Any] = url_handlers(ROUTES, RestHandler)
