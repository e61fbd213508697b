"""`wicketgate policy`: what it prints and with which status, as a person and as a program reads it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wicketgate.commands.policy import policy

GOOD = """version = 1
[egress]
enabled = true
[[rule]]
name = "api"
action = "allow"
hosts = ["api.example.com", "bücher.example"]
methods = ["GET"]
paths = ["/v1/**"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return write(tmp_path / "policy.toml", GOOD)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(policy, [str(argument) for argument in arguments])


def test_check_shows_both_forms_of_a_name_and_ends_well(file: Path) -> None:
    result = run("check", file)
    assert result.exit_code == 0
    assert 'host "bücher.example" is used as xn--bcher-kva.example' in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"{file}: ok: version ")
    assert result.stdout.splitlines()[-1].endswith("1 rule, egress on, mode enforce")


def test_check_shows_every_problem_and_fails(file: Path) -> None:
    write(
        file, GOOD.replace('"GET"', '"TRACE"').replace("enabled = true", "enabled = 1").replace('"api.', '"*.com", "')
    )
    result = run("check", file)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.split(":")[1] for line in lines[:3]] == ["3", "7", "8"]
    assert lines[-1] == f"{file}: refused: 3 errors"


def test_check_as_a_document(file: Path) -> None:
    document = json.loads(run("check", file, "--json").stdout)
    assert (document["ok"], document["rules"], document["mode"]) == (True, ["api"], "enforce")
    assert document["problems"][0]["severity"] == "note"
    write(file, "version = 2")
    result = run("check", file, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["problems"] == [
        {
            "severity": "error",
            "line": 1,
            "where": None,
            "found": "version is 2",
            "expected": "1, the only one known",
            "suggestion": "version = 1",
        }
    ]


def test_check_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("check", tmp_path / "absent.toml")
    assert result.exit_code == 1
    assert "No such file" in result.stderr


def test_explain_in_words(file: Path) -> None:
    result = run("explain", file, "PUT", "https://API.example.com/v1/x")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        (
            "PUT https://api.example.com:443/v1/x is denied (method_not_allowed): "
            'rule api of the policy allows GET, HEAD, not "PUT".'
        ),
        'Add "PUT" to methods in rule api of the policy.',
    ]


@pytest.mark.parametrize(
    ("method", "url", "verdict", "reason"),
    [
        ("GET", "https://api.example.com/v1/x?q=1#fragment", "allow", "rule_allow"),
        ("GET", "https://api.example.com", "deny", "path_not_allowed"),
        ("GET", "https://api.example.com/v1/%2e%2e/x", "deny", "path_not_allowed"),
        ("GET", "http://api.example.com/v1/x", "deny", "port_not_allowed"),
        ("GET", "wss://api.example.com/v1/x", "deny", "websocket_not_allowed"),
        ("CONNECT", "https://api.example.com", "allow", "rule_allow"),
        ("TRACE", "https://api.example.com/v1/x", "deny", "method_refused"),
        ("GET", "https://api.example.com/v1/a b", "deny", "bad_request"),
        ("GET", "https://[2606:4700::1]/", "deny", "address_literal"),
    ],
)
def test_explain_as_a_document(file: Path, method: str, url: str, verdict: str, reason: str) -> None:
    document = json.loads(run("explain", file, method, url, "--json").stdout)
    assert (document["verdict"], document["reason"]) == (verdict, reason)
    assert document["sentence"]
    assert document["turn"]


@pytest.mark.parametrize(
    "url",
    [
        "api.example.com",
        "ftp://api.example.com/",
        "https://",
        "https://a@api.example.com/",
        "https://a..b/",
        "https://x:0/",
    ],
)
def test_explain_refuses_what_is_no_url(file: Path, url: str) -> None:
    result = run("explain", file, "GET", url)
    assert result.exit_code == 2
    assert "URL" in result.stderr


def test_explain_asks_a_grant_too_and_says_whether_it_would_be_issued(file: Path, tmp_path: Path) -> None:
    rules = [{"name": "g", "action": "allow", "hosts": ["api.example.com"], "methods": ["GET"], "paths": ["/v1/only"]}]
    grant = write(tmp_path / "grant.json", json.dumps({"rules": rules}))
    denied = json.loads(run("explain", file, "GET", "https://api.example.com/v1/x", "--grant", grant, "--json").stdout)
    assert (denied["verdict"], denied["reason"], denied["uncovered"]) == ("deny", "path_not_allowed", [])
    rules[0]["methods"] = ["GET", "PUT"]
    write(grant, json.dumps(rules))
    result = run("explain", file, "GET", "https://api.example.com/v1/only", "--grant", grant)
    assert "is allowed by rule api" in result.stdout
    assert "This grant would not be issued" in result.stdout
    assert "PUT" in result.stdout


@pytest.mark.parametrize("text", ["{", "[]", '[{"name": "g"}]', '{"rules": 3}', "[" * 100_000])
def test_explain_refuses_a_broken_grant(file: Path, tmp_path: Path, text: str) -> None:
    grant = write(tmp_path / "grant.json", text)
    result = run("explain", file, "GET", "https://api.example.com/", "--grant", grant)
    assert result.exit_code == 1
    assert str(grant) in result.stderr


def test_explain_refuses_a_broken_policy(file: Path) -> None:
    write(file, "version = 3")
    result = run("explain", file, "GET", "https://api.example.com/")
    assert result.exit_code == 1
    assert "version is 3" in result.stderr
