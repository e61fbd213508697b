"""The pages about the control API say what the API is."""

import re
import tomllib

from broker.api.faults import faults_in
from broker.control.config import GrantLimits, parse_config
from broker.control.faults import Fault
from broker.control.grants import _LEAST_BYTES, _MOST_BYTES, _MOST_COUNT
from broker.control.openapi import openapi_document
from broker.control.schema import MAX_PAGE, Budgets
from tests.tree import ROOT

REFERENCE = (ROOT / "docs/reference/control-api.md").read_text("utf-8")
GUIDE = (ROOT / "docs/guide/grants.md").read_text("utf-8")


def test_the_reference_has_every_operation() -> None:
    told = set(re.findall(r"^\| (GET|PUT|POST|DELETE) \| `([^`]+)` \|", REFERENCE, re.MULTILINE))
    document = openapi_document()
    assert told == {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def test_the_reference_has_every_error() -> None:
    told = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (.+) \|$", REFERENCE, re.MULTILINE)
    assert told == [(fault.code, str(fault.status), fault.title) for fault in faults_in(Fault)]


def test_the_reference_has_every_parameter_of_a_list() -> None:
    (line,) = (line for line in REFERENCE.splitlines() if line.startswith("| GET | `/v1/grants` |"))
    parameters = openapi_document()["paths"]["/v1/grants"]["get"]["parameters"]
    for parameter in parameters:
        assert parameter["in"] == "header" or f"`{parameter['name']}`" in line
    assert f"(1 to {MAX_PAGE})" in line


def test_the_configuration_shown_is_one_and_has_the_defaults() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)
    config = parse_config(text, source="reference")
    assert config.grants == GrantLimits()
    assert set(tomllib.loads(text)["broker"]) == {"policy", "state", "runtime", "sync", "cacert", "workers"}


def test_the_guide_shows_the_example_and_every_budget() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert code == (ROOT / "tests/examples/grant_for_a_tool_call.py").read_text("utf-8")
    for name in Budgets.__struct_fields__:
        assert f"`{name}`" in GUIDE
    assert f"at most {_MOST_COUNT};" in GUIDE
    assert f"{_LEAST_BYTES // 1024} KiB to {_MOST_BYTES // 2**20} MiB" in GUIDE
