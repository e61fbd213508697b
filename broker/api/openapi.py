"""Writes the OpenAPI 3.1 document of an API from its table of routes and its value types. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.api.faults import FaultKind
from broker.api.routes import Kind, Route, faults_of

OPENAPI: Final = "3.1.0"
API_VERSION: Final = "1"
_REF: Final = "#/components/schemas/{name}"
_MEDIA: Final = {Kind.DOCUMENT: "application/json", Kind.EVENTS: "application/x-ndjson"}
_REQUEST_ID: Final = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "Comes back in the answer, in problem documents and, where there is one, in the log.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: its words, its routes, its problem document, and types that are shown though no route names them."""

    title: str
    description: str
    socket: str
    routes: Sequence[Route]
    problem: type[msgspec.Struct]
    also: tuple[Any, ...] = ()


def openapi_document(api: Api) -> dict[str, Any]:
    """The document, as JSON would hold it. The same on each call."""
    types = [kind for route in api.routes for kind in (route.body, route.answer, route.query) if kind is not None]
    unique = list(dict.fromkeys([*types, api.problem, *api.also]))
    made, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schemas = dict(zip(unique, made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in api.routes:
        operation = _operation(route, schemas, components, schemas[api.problem])
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": OPENAPI,
        "info": {"title": api.title, "version": API_VERSION, "description": api.description},
        "servers": [{"url": "http://localhost", "description": api.socket}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, schemas: dict[Any, Any], components: dict[str, Any], problem: Any) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters
    ]
    if route.query is not None:
        fields = components[route.query.__name__]
        parameters += [
            {"name": name, "in": "query", "required": name in fields["required"], "schema": kind}
            for name, kind in fields["properties"].items()
        ]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*parameters, _REQUEST_ID],
        "responses": {str(route.status): _done(route, schemas)} | _problems(route, problem),
    }
    if route.body is not None:
        body = {"application/json": {"schema": schemas[route.body]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _done(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    if route.kind is Kind.SOCKET:
        return {"description": "A WebSocket."}
    what = "One event a line, as they come." if route.kind is Kind.EVENTS else "Done."
    return {"description": what, "content": {_MEDIA[route.kind]: {"schema": schemas[route.answer]}}}


def _problems(route: Route, problem: Any) -> dict[str, Any]:
    by_status: dict[int, list[FaultKind]] = {}
    for fault in faults_of(route):
        by_status.setdefault(fault.status, []).append(fault)
    return {
        str(status): {
            "description": " ".join(f"`{fault.code}`: {fault.title}" for fault in faults),
            "content": {"application/problem+json": {"schema": problem}},
        }
        for status, faults in sorted(by_status.items())
    }
