"""REST below ``api/v1/``: one table of operations, from which URL handlers and the OpenAPI document are made."""

from __future__ import annotations

from typing import Any

from carme_hub.services.fields import Error
from carme_hub.services.folders.rest import acts, looks, models
from carme_hub.services.folders.scopes import ADMIN, READ, WRITE
from carme_hub.services.openapi import Operation, document
from carme_hub.services.rest import ROOT, Call, RestHandler, Route, url_handlers

#: Version of the interface: the first number changes with an incompatible change.
VERSION = "1.0"
_ID = {"id": {"type": "string", "pattern": models.ID}}
_MEMBER = {**_ID, "member": {"type": "string", "pattern": r"^[1-9][0-9]{0,17}$"}}


async def openapi(call: Call) -> dict[str, Any]:
    """Return this document."""
    return openapi_document(call.service.prefix)


def _operation(method: str, path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    if "{id}" in path:
        more = {"path_parameters": _ID, **more, "errors": (404, 409, *more.get("errors", ()))}
    return Operation(method, ROOT + path, summary, *rest, **more)


def _act(path: str, summary: str, function: Any, body: Any = None, answer: Any = models.FolderOut) -> Route:
    return Route(_operation("POST", f"folders/{{id}}/{path}", summary, (WRITE,), answer, body=body), function)


def _read(path: str, summary: str, function: Any, answer: Any, **more: Any) -> Route:
    return Route(_operation("GET", path, summary, (READ,), answer, **more), function)


ROUTES: tuple[Route, ...] = (
    _read("folders", "The caller's folders", acts.listed, models.FoldersOut, query=models.ListQuery),
    Route(
        _operation("POST", "folders", "Make a folder", (WRITE,), models.FolderOut, body=models.CreateIn, errors=(409,)),
        acts.create,
    ),
    _read("folders/{id}", "A folder, by id or name", acts.one, models.FolderOut),
    Route(
        _operation(
            "PATCH", "folders/{id}", "Describe or publish a folder", (WRITE,), models.FolderOut, body=models.DescribeIn
        ),
        acts.describe,
    ),
    Route(
        _operation("DELETE", "folders/{id}", "Delete a folder and its files", (WRITE,), query=models.DeleteQuery),
        acts.delete,
    ),
    _act("members", "Invite a user, a group or an account", acts.invite, models.InviteIn),
    Route(
        _operation(
            *("DELETE", "folders/{id}/members/{member}", "End a member's access", (WRITE,), models.FolderOut),
            path_parameters=_MEMBER,
        ),
        acts.revoke,
    ),
    _act("answer", "Accept or decline an invitation", acts.answer, models.AnswerIn),
    _act("leave", "Leave a folder, or take a dataset off the list", acts.leave, answer=None),
    _act("keep", "Put a dataset on the caller's list", acts.keep),
    _act("handover", "Offer a folder to a member", acts.offer_handover, models.HandoverIn),
    _act("handover/answer", "Become its owner, or not", acts.answer_handover, models.HandoverAnswerIn),
    _act("scan", "Count what members cannot use", acts.scan, answer=models.FilesOut),
    _act("repair", "Let members use the caller's own files", acts.repair, answer=models.FilesOut),
    _act("apply", "Apply all rights again, over changes by hand", acts.apply_again),
    _read("folders/{id}/disk", "How full a folder is, and its largest folders", looks.disk, models.DiskOut),
    _act("measure", "Measure a folder by a job", looks.measure, answer=models.JobOut),
    _read("folders/{id}/verification", "Whether its checksums hold", looks.verification, models.VerificationOut),
    _act("verify", "Compare a folder with its checksums by a job", looks.verify, answer=models.JobOut),
    _read("folders/{id}/sessions", "Sessions that have a folder", acts.sessions, models.SessionsOut),
    _act("sessions/end", "End sessions whose users' access has ended", acts.end_sessions, answer=models.SessionsOut),
    _read("folders/{id}/events", "What was done with a folder", acts.events, models.EventsOut),
    _read("datasets", "Search published datasets", acts.datasets, models.FoldersOut, query=models.DatasetsQuery),
    Route(_operation("GET", "health", "How the folders are kept", (ADMIN,), models.HealthOut), acts.health),
    Route(
        Operation("GET", ROOT + "openapi.json", "This document", public=True, media_type="application/json"), openapi
    ),
)


def openapi_document(prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    return document("Shared folders", VERSION, prefix, [route.operation for route in ROUTES], Error)


API: list[Any] = url_handlers(ROUTES, RestHandler)
