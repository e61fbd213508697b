"""The pages about the runner say what it is."""

import re
import tomllib

from broker.api.faults import faults_in
from sandbox.limits import Limits
from tests.tree import ROOT
from wicketgate.runner.config import Access, Where, parse_config
from wicketgate.runner.faults import Fault
from wicketgate.runner.routes import ROUTES

REFERENCE = (ROOT / "docs/reference/runner-api.md").read_text("utf-8")
GUIDE = (ROOT / "docs/guide/runner.md").read_text("utf-8")


def test_the_reference_has_every_operation() -> None:
    told = re.findall(r"^\| (GET|PUT|POST|DELETE) \| `([^`]+)` \| (.+) \|$", REFERENCE, re.MULTILINE)
    assert told == [(route.method, route.path, route.summary) for route in ROUTES]


def test_the_reference_has_every_error() -> None:
    told = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (.+) \|$", REFERENCE, re.MULTILINE)
    assert told == [(fault.code, str(fault.status), fault.title) for fault in faults_in(Fault)]


def test_the_configuration_shown_is_one_and_has_the_defaults() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)
    config, shown = parse_config(text, source="reference"), tomllib.loads(text)
    assert config.most() == Limits()
    assert set(shown["limits"]) == set(Limits.__struct_fields__) - {"cpus"}
    assert set(shown["runner"]) == set(Where.__struct_fields__)
    assert set(shown["access"]) == set(Access.__struct_fields__)
    assert config.runner.parked == Where().parked


def test_the_guide_shows_the_example_that_runs_as_a_test() -> None:
    example = (ROOT / "tests/examples/tool_calls.py").read_text("utf-8")
    assert f"```python\n{example}```" in GUIDE
