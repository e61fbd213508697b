"""The OpenAPI 3.1 document of the control API, written from the table of routes and the value types. Pure."""

from typing import Any, Final

import msgspec

from broker.control import schema
from broker.control.faults import Fault
from broker.control.routes import ROUTES, Route, faults_of

OPENAPI: Final = "3.1.0"
API_VERSION: Final = "1"
_REF: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (schema.Problem, schema.GrantRule)
_REQUEST_ID: Final = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "Comes back in the answer, in problem documents and in the log.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}


def openapi_document() -> dict[str, Any]:
    """The document, as JSON would hold it. The same on each call."""
    types = [kind for route in ROUTES for kind in (route.body, route.answer, route.query) if kind is not None]
    unique = list(dict.fromkeys([*types, *_ALWAYS]))
    made, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schemas = dict(zip(unique, made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "Wicketgate broker: control API",
            "version": API_VERSION,
            "description": "HTTP on a unix socket, for users whom the broker's configuration names.",
        },
        "servers": [{"url": "http://localhost", "description": "The broker's control socket."}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters
    ]
    if route.query is not None:
        parameters += _query_parameters(components[route.query.__name__])
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*parameters, _REQUEST_ID],
        "responses": {str(route.status): _response("Done.", schemas[route.answer], "application/json")}
        | _problems(route, schemas[schema.Problem]),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    return operation


def _query_parameters(component: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": name in component["required"], "schema": kind}
        for name, kind in component["properties"].items()
    ]


def _problems(route: Route, problem: Any) -> dict[str, Any]:
    by_status: dict[int, list[Fault]] = {}
    for fault in faults_of(route):
        by_status.setdefault(fault.status, []).append(fault)
    return {
        str(status): _response(
            " ".join(f"`{fault.code}`: {fault.title}" for fault in faults), problem, "application/problem+json"
        )
        for status, faults in sorted(by_status.items())
    }


def _response(description: str, kind: Any, media_type: str) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": kind}}}
