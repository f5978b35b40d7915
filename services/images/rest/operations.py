"""REST below ``api/v1/``: one table of operations, from which URL handlers and the OpenAPI document are made."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.images.scopes import MANAGE, NODES, OFFER, READ, READ_ALL
from carme_hub.services.fields import Error
from carme_hub.services.images.rest import builds, read, write
from carme_hub.services.images.rest import models as m
from carme_hub.services.openapi import Operation, document
from carme_hub.services.rest import ROOT, Call, RestHandler, Route, url_handlers

#: Version of the interface: the first number changes with an incompatible change.
VERSION = "1.0"
_NAME = {"name": {"type": "string", "pattern": m.NAME}}
_NODE = {"node": {"type": "string", "pattern": m.NODE}}
_BUILD = {"id": {"type": "string", "pattern": m.BUILD}}
_READ = (READ, READ_ALL, OFFER, MANAGE)
_OFFER = (OFFER, MANAGE)
_REFUSALS = (404, 409)


async def openapi(call: Call) -> dict[str, Any]:
    """Return this document."""
    return openapi_document(call.service.prefix)


def _op(method: str, path: str, summary: str, *rest: Any, **more: Any) -> Operation:
    return Operation(method, ROOT + path, summary, *rest, **more)


def _of_image(method: str, part: str, summary: str, scopes: tuple[str, ...], **more: Any) -> Operation:
    path = f"images/{{name}}{part}"
    return _op(method, path, summary, scopes, m.ImageOut, path_parameters=_NAME, errors=_REFUSALS, **more)


def _of_build(method: str, part: str, summary: str, scopes: tuple[str, ...], **more: Any) -> Operation:
    path = f"builds/{{id}}{part}"
    return _op(method, path, summary, scopes, m.BuildOut, path_parameters=_BUILD, errors=_REFUSALS, **more)


ROUTES: tuple[Route, ...] = (
    Route(_op("GET", "images", "Images by name", _READ, m.ImagesOut, query=m.ImagesQuery), read.images),
    Route(_of_image("PUT", "/retirement", "Offer it no more from a date on", (MANAGE,), body=m.RetireIn), write.retire),
    Route(_of_image("DELETE", "/retirement", "Offer it again, without a date", (MANAGE,)), write.keep),
    Route(_of_image("PUT", "/offers", "Offer it to somebody", _OFFER, body=m.OfferIn), write.offer),
    Route(_of_image("DELETE", "/offers", "Take an offer back", _OFFER, query=m.OfferQuery), write.take_back),
    Route(_of_image("GET", "", "One image", _READ), read.image),
    Route(_op("GET", "builds", "Images that users have built", _OFFER, m.BuildsOut), builds.builds),
    Route(_of_build("PUT", "/offer", "Have it offered to somebody", _OFFER, body=m.OfferIn), builds.want),
    Route(_of_build("DELETE", "/offer", "Have it offered to nobody", _OFFER), builds.withdraw),
    Route(_of_build("PUT", "/decision", "Allow or refuse it", (MANAGE,), body=m.DecisionIn), builds.decide),
    Route(_op("GET", "nodes", "Which node has which image", _READ, m.NodesOut), read.nodes),
    Route(
        _op("GET", "nodes/{node}/wanted", "What a node is to fetch", (NODES,), m.WantedOut, path_parameters=_NODE),
        write.wanted,
    ),
    Route(
        _op("POST", "nodes/{node}/images", "What a node has", (NODES,), body=m.NodeIn, path_parameters=_NODE),
        write.report,
    ),
    Route(_op("GET", "openapi.json", "This document", public=True, media_type="application/json"), openapi),
)


def openapi_document(prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    return document("Images", VERSION, prefix, [route.operation for route in ROUTES], Error)


API: list[Any] = url_handlers(ROUTES, RestHandler)
