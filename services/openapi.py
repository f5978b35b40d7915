"""An OpenAPI 3.1 document from a table of operations and their pydantic models (https://spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"
#: Pattern of an Idempotency-Key: letters, digits, dot, dash, underscore.
KEY_PATTERN = r"^[A-Za-z0-9._-]{1,100}$"
#: Statuses that every operation may answer: the request is wrong, or the service or a dependency is unavailable.
_ALWAYS = (400, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        path: below the service's prefix, with ``{name}`` for path parameters; path_parameters: their JSON schemas.
        scopes: the visitor needs one of them. public: it needs no login.
        query, body, response: models of the query, the body and the answer. media_type: of an answer that is not JSON.
        idempotent: it requires an ``Idempotency-Key`` header. errors: further statuses.
        error_bodies: models of errors with more fields than the usual one, by status.
    """

    method: str
    path: str
    summary: str
    scopes: tuple[str, ...] = ()
    response: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    idempotent: bool = False
    public: bool = False
    media_type: str = ""
    errors: tuple[int, ...] = ()
    path_parameters: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    error_bodies: Mapping[int, type[BaseModel]] = field(default_factory=dict)


def document(
    title: str, version: str, prefix: str, operations: Sequence[Operation], error: type[BaseModel]
) -> dict[str, Any]:
    """Return the whole document."""
    takes = {op.body for op in operations if op.body is not None}
    gives = {op.response for op in operations if op.response is not None} | {error}
    gives |= {model for op in operations for model in op.error_bodies.values()}
    named = [(model, "validation") for model in takes] + [(model, "serialization") for model in gives]
    modes = sorted(named, key=lambda pair: pair[0].__name__)
    _, schemas = models_json_schema(modes, ref_template=_REF)  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for op in operations:
        paths.setdefault("/" + op.path, {})[op.method.lower()] = _operation(op, error)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "servers": [{"url": prefix.rstrip("/") or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API token of the hub, in the Authorization header.",
                }
            },
        },
        "security": [{"token": []}],
    }


def _operation(op: Operation, error: type[BaseModel]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": op.path_parameters.get(name, {"type": "string"})}
        for name in re.findall(r"{(\w+)}", op.path)
    ]
    if op.query is not None:
        schema = op.query.model_json_schema(ref_template=_REF)
        needed = schema.get("required", ())
        parameters += [
            {"name": name, "in": "query", "required": name in needed, "schema": about}
            for name, about in schema["properties"].items()
        ]
    if op.idempotent:
        key = {"type": "string", "pattern": KEY_PATTERN}
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": True, "schema": key})
    answer: dict[str, Any] = {"description": "Done"}
    if op.response is not None:
        answer["content"] = _json(op.response)
    elif op.media_type:
        answer["content"] = {op.media_type: {"schema": {"type": "string"}}}
    answers: dict[str, Any] = {"200": answer}
    own = {*_ALWAYS, *op.errors, *op.error_bodies, *(() if op.public else (401, 403)), *((409, 415) if op.body else ())}
    own |= {422} if op.idempotent else set()
    for status in sorted(own):
        answers[str(status)] = {"description": "Refused", "content": _json(op.error_bodies.get(status, error))}
    needs = f"Needs the scope {' or '.join(op.scopes)}." if op.scopes else "Needs a login."
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{op.method.lower()}_{op.path.rpartition('v1/')[2]}").strip("_"),
        "summary": op.summary,
        "description": "Needs no login." if op.public else needs,
        "parameters": parameters,
        "responses": answers,
    }
    if op.public:
        found["security"] = []
    if op.body is not None:
        found["requestBody"] = {"required": True, "content": _json(op.body)}
    return found


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
