"""The self-test in containers that lack something: the layer, the sentence, the exit code, and no tool runs."""

import json
import tomllib
from typing import Any

import pytest

from tests.compose.engine import Engine
from tests.tree import ROOT

CASES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/cases/doctor_containers.toml").read_text())["case"]
START = ("docker", "run", "--rm", "--cap-drop", "ALL", "--network", "none", "--read-only", "--tmpfs", "/tmp")
STATE = ("--tmpfs", "/state:uid=64321,mode=0700", "--env", "XDG_STATE_HOME=/state")
MORE = ("--security-opt", "no-new-privileges")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_cause_is_named(engine: Engine, case: dict[str, Any]) -> None:
    (engine.work / "nothing").touch(mode=0o644)
    start = (*START, *STATE, *MORE, *case["options"], "wicketgate:local")

    done = engine.run(*start, "doctor", "--json")
    run = engine.run(*start, "run", "--", "echo", "unsandboxed")
    said = engine.run(*start, "doctor")

    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == said.returncode == 78, report
    (failed,) = (one for one in report["findings"] if one["state"] == "failed")
    assert (failed["check"], failed["layer"]) == (case["check"], case["layer"])
    assert failed["sentence"].startswith(case["sentence"])
    assert failed["cure"]
    assert report["modes"] == {"sandbox": case["sandbox"], "bridge": False}
    assert failed["sentence"] in said.stdout.decode()
    assert failed["cure"] in said.stdout.decode()
    assert (run.stdout == b"unsandboxed\n") is case["sandbox"], "a sandbox that can be built is one"
    assert run.returncode == (0 if case["sandbox"] else 125), run
