"""Hostile tool-call JSON: nothing that a model can write becomes a right, and what is admitted is what was judged."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.api.decoding import decode_body
from broker.api.faults import ApiError
from sandbox.host import look_at_host
from sandbox.limits import Limits
from sandbox.rights import stored_limits, stored_network
from sandbox.spec import Network
from sandbox.workspace import ForbiddenRoots
from wicketgate.runner import schema
from wicketgate.runner.admission import Admission
from wicketgate.runner.faults import Fault
from wicketgate.runner.readiness import Readiness

CASES = tomllib.loads((Path(__file__).parents[2] / "cases" / "runner_hostile_calls.toml").read_text())["case"]


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    return Admission(most=Limits(), forbidden=ForbiddenRoots(), state=tmp_path, ready=Readiness(host=look_at_host()))


def admit(admission: Admission, body: bytes) -> Any:
    """As the server does it, in the same order."""
    request = decode_body(msgspec.json.Decoder(schema.StartRun), "application/json", body)
    return admission.command(request.call), admission.rights(request.authority, full_access=False)


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_a_hostile_call_is_refused(case: dict[str, str], admission: Admission) -> None:
    with pytest.raises(ApiError) as refused:
        admit(admission, case["body"].encode())
    assert refused.value.code == case["code"]


def test_the_two_halves_share_no_field_but_the_time() -> None:
    """`timeout` is in both, and the call's can only shorten the authority's."""
    call, authority = (set(kind.__struct_fields__) for kind in (schema.Call, schema.Authority))
    assert call & authority == {"timeout"}
    assert set(schema.TerminalCall.__struct_fields__) & authority == set()
    assert set(schema.SessionRun.__struct_fields__) == {"call"}, "a call in a session brings no rights along"


def sent_types() -> list[type]:
    return [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, schema.Sent)]


@pytest.mark.parametrize("kind", sent_types(), ids=lambda kind: kind.__name__)
def test_whatever_is_sent_is_closed(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.forbid_unknown_fields
    assert kind.__struct_config__.frozen


def test_what_is_admitted(admission: Admission) -> None:
    command, rights = admit(
        admission, b'{"call": {"bash": "echo hi", "timeout": 5, "directory": "a/./b"}, "authority": {"timeout": 3}}'
    )  # type: ignore[misc]
    assert command.argv == ("/bin/bash", "-c", "echo hi")
    assert command.directory == "a/b"
    assert command.limit(rights) == 3
    assert rights.network is Network.NONE


def test_a_script_that_linux_would_not_take_is_refused_before(admission: Admission) -> None:
    with pytest.raises(ApiError) as refused:
        admission.command(schema.Call(bash="ü" * 70_000))
    assert refused.value.fault is Fault.TOO_LARGE


@pytest.mark.parametrize("value", ["open", "host", "", None, 1, ["brokered"], "BROKERED", "brokered "])
def test_an_unknown_stored_network_is_none(value: object) -> None:
    assert stored_network(value) is Network.NONE


@pytest.mark.parametrize("value", [None, [], {"tasks": "many"}, {"tasks": -1}, {"unknown": 1}])
def test_impossible_stored_limits_are_the_defaults(value: object) -> None:
    assert stored_limits(value) == Limits()
