"""The package's docstring is a map: it names every module and nothing that is not there."""

import re

import sandbox
from tests.tree import ROOT

PACKAGE = ROOT / "sandbox"


def test_the_map_names_every_module() -> None:
    named = re.findall(r"(\w+)(\.py|/)", sandbox.__doc__ or "")
    there = {path.stem for path in PACKAGE.glob("[!_]*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert {name for name, _ in named} == there
    assert len(named) == len(there), "twice"
