"""The OpenAPI 3.1 document of the runner's API, written from the table of routes and the value types. Pure."""

from typing import Any, Final

import msgspec

from wicketgate.runner import schema
from wicketgate.runner.faults import Fault
from wicketgate.runner.routes import ROUTES, Kind, Route, faults_of

OPENAPI: Final = "3.1.0"
API_VERSION: Final = "1"
_REF: Final = "#/components/schemas/{name}"
_MEDIA: Final = {Kind.DOCUMENT: "application/json", Kind.EVENTS: "application/x-ndjson"}


def openapi_document() -> dict[str, Any]:
    """The document, as JSON would hold it. The same on each call."""
    types = [kind for route in ROUTES for kind in (route.body, route.answer, route.query) if kind is not None]
    unique = list(dict.fromkeys([*types, schema.Problem]))
    made, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schemas = dict(zip(unique, made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "Wicketgate runner API",
            "version": API_VERSION,
            "description": "HTTP on a unix socket, for users whom the runner's configuration names.",
        },
        "servers": [{"url": "http://localhost", "description": "The runner's socket."}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
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
        "parameters": parameters,
        "responses": {str(route.status): _done(route, schemas)} | _problems(route, schemas[schema.Problem]),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    return operation


def _done(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    if route.kind is Kind.SOCKET:
        return {"description": "A WebSocket."}
    what = "One event a line, as they come." if route.kind is Kind.EVENTS else "Done."
    return {"description": what, "content": {_MEDIA[route.kind]: {"schema": schemas[route.answer]}}}


def _problems(route: Route, problem: Any) -> dict[str, Any]:
    by_status: dict[int, list[Fault]] = {}
    for fault in faults_of(route):
        by_status.setdefault(fault.status, []).append(fault)
    return {
        str(status): {
            "description": " ".join(f"`{fault.code}`: {fault.title}" for fault in faults),
            "content": {"application/problem+json": {"schema": problem}},
        }
        for status, faults in sorted(by_status.items())
    }
