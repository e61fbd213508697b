"""The policy reference tells the truth: its examples load, and its tables name what the program has."""

import re
from pathlib import Path

import pytest

from broker.policy.decide import PRECEDENCE
from broker.policy.limits import DEFAULTS
from broker.policy.load import MAX_BYTES, parse_policy
from broker.policy.paths import parse_path_pattern
from broker.policy.preset_sources import PRESETS
from broker.policy.schema import RULE_KEYS

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "policy.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return re.split(r"^#+ ", TEXT.partition(f" {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_loads_without_a_warning(example: str) -> None:
    assert parse_policy(example, source="docs", advise=True).notes == ()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


def test_every_key_of_a_rule_is_described() -> None:
    described = [key for row in rows("`[[rule]]`") for key in re.findall(r"`([^`]+)`", row[0])]
    assert tuple(described) == RULE_KEYS


def test_every_limit_is_described_with_its_default() -> None:
    described: dict[str, str] = {}
    for row in rows("`[limits]`"):
        described |= zip(re.findall(r"`(\w+)`", row[0]), row[1].split(", "), strict=True)
    assert described == {name: f"{value:g}" for name, value in DEFAULTS.items()}


def test_the_path_table_is_true() -> None:
    for pattern, yes, no in rows("Paths"):
        parsed = parse_path_pattern(pattern.strip("`"))
        assert all(parsed.matches(path) for path in re.findall(r"`([^`]+)`", yes)), pattern
        assert not any(parsed.matches(path) for path in re.findall(r"`([^`]+)`", no)), pattern


def test_presets_precedence_and_size() -> None:
    assert re.findall(r'`"(\w+)"`', section("Presets")) == sorted(PRESETS)
    assert len(re.findall(r"^\d+\. ", section("Precedence"), re.MULTILINE)) == len(PRECEDENCE)
    assert f"At most {MAX_BYTES // 2**20} MiB" in TEXT
