"""The OpenAPI document and the server say the same, both ways."""

import inspect
import json
import re
from typing import Any

import msgspec
import pytest

from broker.api.faults import ProblemDocument, faults_in
from broker.api.routes import Kind, Route, faults_of
from wicketgate.runner import schema
from wicketgate.runner.client import Runner
from wicketgate.runner.faults import Fault
from wicketgate.runner.openapi import openapi_document
from wicketgate.runner.operations import Operations
from wicketgate.runner.routes import ROUTES

DOCUMENT = openapi_document()


def operations() -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: {**operation, "path": path, "method": method.upper()}
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_is_documented_and_nothing_else() -> None:
    found = {(one["method"], one["path"], name) for name, one in operations().items()}
    assert found == {(route.method, route.path, route.name) for route in ROUTES}
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_the_server_has_the_operation_with_these_arguments(route: Route) -> None:
    names = list(inspect.signature(getattr(Operations, route.name)).parameters)[2:]
    expected = len(names) - ("identity" in names)
    extra = route.kind is not Kind.DOCUMENT
    assert expected == (route.body is not None) + (route.query is not None) + extra
    assert ("identity" in names) == bool(route.parameters)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_the_document_tells_every_answer(route: Route) -> None:
    responses = operations()[route.name]["responses"]
    assert set(responses) == {str(route.status), *(str(fault.status) for fault in faults_of(route))}
    for fault in faults_of(route):
        assert f"`{fault.code}`" in responses[str(fault.status)]["description"]


def test_every_reference_leads_somewhere() -> None:
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT)))
    assert named <= set(DOCUMENT["components"]["schemas"])


def test_every_document_of_the_schema_is_used() -> None:
    kinds = {
        name
        for name, kind in vars(schema).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind not in {msgspec.Struct, schema.Sent, schema.Answer, ProblemDocument}
    }
    assert kinds - set(DOCUMENT["components"]["schemas"]) == set()


def test_what_is_sent_is_closed_in_the_document_too() -> None:
    for name, kind in vars(schema).items():
        if isinstance(kind, type) and issubclass(kind, schema.Sent) and kind is not schema.Sent:
            assert DOCUMENT["components"]["schemas"][name]["additionalProperties"] is False, name


def test_the_client_has_a_method_for_every_operation() -> None:
    source = inspect.getsource(Runner)
    for route in ROUTES:
        path = route.path.replace("{identity}", "{")
        assert path.split("{")[0] in source.replace('f"', '"'), route.name


def test_every_fault_is_documented_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    of_no_operation = {Fault.UNKNOWN_PATH, Fault.METHOD_NOT_ALLOWED}
    assert [fault for fault in faults_in(Fault) if f"`{fault.code}`" not in text and fault not in of_no_operation] == []
