"""The runner's profile is the engine's default and exactly the calls that sandboxes are made of; each is needed."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from deploy.seccomp.generate import ADDED, PROFILE, profile, read_default, text
from tests.compose.engine import Engine
from tests.tree import ROOT

OPTIONS = ("--cap-drop", "ALL", "--network", "none", "--read-only", "--security-opt", "no-new-privileges")
WRITABLE = ("--tmpfs", "/tmp", "--tmpfs", "/state:uid=64321,mode=0700", "--env", "XDG_STATE_HOME=/state")
UNMASKED = ("--security-opt", "systempaths=unconfined")

type Rule = tuple[str, str, int | None, tuple[tuple[int, int, int, str], ...]]


def test_the_committed_profile_is_what_the_generator_makes() -> None:
    assert text() == text() == PROFILE.read_text(encoding="utf-8")
    check = [sys.executable, str(ROOT / "deploy/seccomp/generate.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0


def test_the_check_sees_a_change(tmp_path: Any) -> None:
    changed = tmp_path / "seccomp"
    changed.mkdir()
    for name in ("generate.py", "default.toml"):
        (changed / name).write_bytes((ROOT / "deploy/seccomp" / name).read_bytes())
    (changed / "runner.json").write_text(text().replace('"mount"', '"mount", "bpf"'))
    done = subprocess.run([sys.executable, str(changed / "generate.py"), "--check"], check=False, capture_output=True)
    assert done.returncode == 1
    assert b"run it without --check" in done.stderr


def rules(installed: dict[str, Any]) -> set[Rule]:
    """What a runtime was really given, a rule for each call."""
    return {
        (
            name,
            rule["action"],
            rule.get("errnoRet"),
            tuple((one["index"], one["value"], one.get("valueTwo", 0), one["op"]) for one in rule.get("args") or ()),
        )
        for rule in installed["syscalls"]
        for name in rule["names"]
    }


def installed(engine: Engine, *options: str) -> dict[str, Any]:
    name = "profile-probe"
    engine.docker(
        "run", "--detach", "--name", name, *OPTIONS, *options, "--entrypoint", "sleep", "wicketgate:local", "600"
    )
    try:
        return dict(engine.bundle(name)["linux"]["seccomp"])
    finally:
        engine.docker("rm", "--force", name)


def test_the_difference_to_the_engines_default(engine: Engine) -> None:
    default = installed(engine)
    ours = installed(engine, "--security-opt", "seccomp=/run/project/deploy/seccomp/runner.json")

    added, taken = rules(ours) - rules(default), rules(default) - rules(ours)

    assert added == {(name, "SCMP_ACT_ALLOW", None, ()) for name in ADDED}
    # One rule goes, because a wider one stands for it: a process in none of the namespaces that the mask names.
    assert {name for name, *_ in taken} == {"clone"}
    for key in ("defaultAction", "defaultErrnoRet"):
        assert ours[key] == default[key]
    assert set(ours["architectures"]) == set(default["architectures"])


def test_the_pinned_facts_are_those_of_the_engine(engine: Engine) -> None:
    version = engine.docker("version", "--format", "{{.Server.Version}}").partition("+")[0]
    assert version == read_default()["engine"]


@pytest.mark.parametrize("name", sorted(ADDED))
def test_each_added_call_is_needed_and_missed_by_name(engine: Engine, name: str) -> None:
    """Without it no sandbox is built, and the self-test says that a seccomp filter is the cause."""
    poorer = profile(read_default())
    poorer["syscalls"][-1]["names"].remove(name)
    if name == "clone":  # the default's own rule, which the profile's wider one replaced
        rule = {"names": ["clone"], "action": "SCMP_ACT_ALLOW"}
        poorer["syscalls"].append(rule | {"args": [{"index": 0, "value": 2114060288, "op": "SCMP_CMP_MASKED_EQ"}]})
    file = engine.work / f"without-{name}.json"
    file.write_text(json.dumps(poorer))

    done = engine.run(
        *("docker", "run", "--rm", *OPTIONS, *WRITABLE, *UNMASKED),
        *("--security-opt", f"seccomp=/run/work/{file.name}", "wicketgate:local", "doctor", "--json"),
    )

    report = json.loads(done.stdout)
    assert done.returncode == 78, report
    failed = [one for one in report["findings"] if one["state"] == "failed"]
    assert {one["layer"] for one in failed} == {"seccomp"}, failed
    assert all("deploy/seccomp/runner.json" in one["cure"] for one in failed)
    assert report["modes"]["bridge"] is False
    assert report["modes"]["sandbox"] is (name == "setns")


def test_with_all_of_them_everything_works(engine: Engine) -> None:
    done = engine.run(
        *("docker", "run", "--rm", *OPTIONS, *WRITABLE, *UNMASKED),
        *("--security-opt", "seccomp=/run/project/deploy/seccomp/runner.json", "wicketgate:local", "doctor", "--json"),
    )
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["modes"] == {"sandbox": True, "bridge": True}


def test_the_profile_names_no_call_twice() -> None:
    names = [name for rule in profile(read_default())["syscalls"] if "args" not in rule for name in rule["names"]]
    assert len(names) == len(set(names))
    assert os.access(ROOT / "deploy/seccomp/generate.py", os.X_OK)
