"""The broker's configuration: a table of texts and of what is said about them."""

import tomllib
from ipaddress import ip_address
from typing import Any

import pytest

from broker.audit.log import SyncPolicy
from broker.control.config import Allowed, GrantLimits, parse_config
from broker.policy.problems import PolicyError
from tests.tree import ROOT

CASES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/cases/broker_config.toml").read_text("utf-8"))["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_reader_says_what_is_wrong(case: dict[str, Any]) -> None:
    says = case.get("says")
    if says is None:
        parse_config(case["text"], source="broker.toml")
        return
    with pytest.raises(PolicyError) as refused:
        parse_config(case["text"], source="broker.toml")
    for part in says:
        assert part in str(refused.value)


def test_everything_is_read() -> None:
    (case,) = (case for case in CASES if case["name"] == "everything")
    config = parse_config(case["text"], source="broker.toml")
    assert config.sync is SyncPolicy.ALWAYS
    assert config.workers == 3
    assert config.control == Allowed(users=("agent", 1000))
    assert config.attach == Allowed(users=("runner",), groups=("runners",))
    assert config.grants == GrantLimits(max_seconds=3600, max_open=10, retention_seconds=60)
    assert [tuple(map(str, found)) for found in config.fixed.values()] == [("192.0.2.7", "2001:db8::7")]
    assert ip_address("192.0.2.7") in next(iter(config.fixed.values()))
