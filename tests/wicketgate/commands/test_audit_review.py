"""`audit suggest` and `audit replay` over a log: what they print, refuse and return."""

import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.audit.log import AuditLog
from broker.policy.load import load_policy
from tests.broker.audit.logs import decision, files, write_log
from wicketgate.commands.audit import audit

POLICY = """version = 1

[egress]
enabled = true

[[rule]]
name = "suggested-other.example.com"
action = "allow"
hosts = ["api.example.com"]
paths = ["/items/2"]
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    with AuditLog.open(tmp_path / "audit") as log:
        for number in range(1, 5):
            log.append(decision(number, allow=number % 2 == 0))
        log.append(decision(5, session="s-2", host="other.example.com", allow=False))
    (tmp_path / "policy.toml").write_text(POLICY)
    return tmp_path


def run(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(audit, [*arguments, "--state-dir", str(state)], catch_exceptions=False)


def test_suggest_prints_rules_that_load(state: Path) -> None:
    result = run(state, "suggest", "--policy", str(state / "policy.toml"))
    assert (result.exit_code, result.stderr) == (0, "")
    rules = tomllib.loads(result.stdout)["rule"]
    assert [(rule["name"], rule["hosts"], rule["paths"], rule["query"]) for rule in rules] == [
        ("suggested-api.example.com", ["api.example.com"], ["/items/1", "/items/3"], ["page=*"]),
        ("suggested-other.example.com-2", ["other.example.com"], ["/items/5"], ["page=*"]),
    ]
    with (state / "policy.toml").open("a") as file:
        file.write(result.stdout)
    assert len(load_policy(state / "policy.toml").rules) == 3
    again = run(state, "suggest", "--policy", str(state / "policy.toml")).stdout
    assert "rule" not in tomllib.loads(again)
    assert "the policy allows it already" in again


def test_the_filters_choose_what_is_looked_at(state: Path) -> None:
    rules = tomllib.loads(run(state, "suggest", "--session", "s-2").stdout)["rule"]
    assert [rule["hosts"] for rule in rules] == [["other.example.com"]]
    assert "No rule would open more." in run(state, "suggest", "--session", "s-3").stdout


def test_suggest_as_json(state: Path) -> None:
    found = json.loads(run(state, "suggest", "--json").stdout)
    assert (found["refusals"], found["hosts_left_out"], found["apart"]) == (3, 0, [])
    assert [one["rule"]["hosts"] for one in found["rules"]] == [["api.example.com"], ["other.example.com"]]
    assert found["rules"][0]["refusals"] == 2
    assert tomllib.loads(found["toml"])["rule"] == [one["rule"] for one in found["rules"]]


def test_replay_says_what_would_change(state: Path) -> None:
    result = run(state, "replay", "--policy", str(state / "policy.toml"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].endswith(": 5 decisions")
    assert lines[1] == "was allowed, would be denied: 1"
    assert "api.example.com:443 rule_allow by project-api → path_not_allowed by suggested-other.example.com" in lines[2]
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")][1:] == [
        "was allowed, would be denied",
        "same verdict, another rule or reason",
        "unchanged",
    ]


def test_replay_fails_where_it_was_asked_to(state: Path) -> None:
    policy = str(state / "policy.toml")
    assert run(state, "replay", "--policy", policy, "--exit-code").exit_code == 1
    assert run(state, "replay", "--policy", policy, "--exit-code", "--session", "s-2").exit_code == 0


def test_replay_as_json(state: Path) -> None:
    found: dict[str, Any] = json.loads(run(state, "replay", "--policy", str(state / "policy.toml"), "--json").stdout)
    assert sum(found["counts"].values()) == sum(group["count"] for group in found["groups"]) == 5
    assert found["counts"]["now_denied"] == 1
    first = found["groups"][0]
    assert (first["change"], first["before"]["rule"], first["after"]["reason"]) == (
        "now_denied",
        "project-api",
        "path_not_allowed",
    )


@pytest.mark.parametrize("command", ["suggest", "replay"])
def test_a_policy_that_is_refused_is_told_with_its_lines(state: Path, command: str) -> None:
    (state / "policy.toml").write_text(POLICY + 'port = [1]\n\n[[rule]]\nname = "x"\n')
    result = run(state, command, "--policy", str(state / "policy.toml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "policy.toml:11: " in result.stderr
    assert "refused: 3 errors" in result.stderr
    document = json.loads(run(state, command, "--policy", str(state / "policy.toml"), "--json").stdout)
    assert document["ok"] is False
    assert document["problems"][0]["line"] == 11
    missing = run(state, command, "--policy", str(state / "nowhere.toml"))
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr


def test_damaged_lines_are_left_out_and_said_by_verify(state: Path) -> None:
    (file,) = files(state / "audit")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"id":"x","time":"2026-11-30T12:00:00Z","kind":"decision","verdict":"deny","count":-1}\n'
    lines[3] = b"\x00\xff\n"
    file.write_bytes(b"".join(lines))
    result = run(state, "suggest")
    assert result.exit_code == 0
    assert len(tomllib.loads(result.stdout)["rule"]) == 2
    assert run(state, "replay", "--policy", str(state / "policy.toml")).exit_code == 0


def test_a_line_that_is_damaged_after_it_was_indexed_is_told(state: Path) -> None:
    assert run(state, "suggest").exit_code == 0
    (file,) = files(state / "audit")
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(content.index(b"other.example.com") - 30)
        opened.write(b"\x00" * 20)
    result = run(state, "suggest")
    assert result.exit_code == 2
    assert "audit verify" in result.stderr


def test_no_log_is_one_line(tmp_path: Path) -> None:
    result = run(tmp_path, "suggest")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


@pytest.mark.root_only
def test_root_reads_the_policy_as_itself_and_the_log_as_its_owner(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "policy.toml").chmod(0o600)
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        state.chmod(0o755)
        write_log(state / "audit", 2)
        for path in (state, *state.rglob("*")):
            os.chown(path, 64321, 64321)
        assert run(state, "replay", "--policy", str(tmp_path / "policy.toml")).exit_code == 0
        assert (state / "audit" / "index.sqlite3").stat().st_uid == 64321
