"""Each promise of the boundary has a test that tries to break it and an oracle: the table names tests that exist."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.tree import ROOT

PROMISES = tomllib.loads((ROOT / "tests" / "cases" / "promises.toml").read_text("utf-8"))["promise"]


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text("utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def exists(place: str) -> bool:
    path, _, name = place.partition("::")
    return (ROOT / path).is_file() and name in names_in(ROOT / path)


@pytest.mark.parametrize("promise", PROMISES, ids=[one["says"] for one in PROMISES])
def test_a_promise_has_an_attempt_and_an_oracle(promise: dict[str, str]) -> None:
    assert exists(promise["attempt"]), promise["attempt"]
    assert promise["oracle"] == "itself" or exists(promise["oracle"]), promise["oracle"]
    assert promise["oracle"] != promise["attempt"]


def test_no_promise_is_told_twice() -> None:
    assert len({one["says"] for one in PROMISES}) == len(PROMISES)


def test_the_look_finds_what_is_not_there() -> None:
    assert not exists("tests/test_promises.py::test_of_nothing")
    assert not exists("tests/nowhere.py::test_the_look_finds_what_is_not_there")
