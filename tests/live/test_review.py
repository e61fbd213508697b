"""From a refused session to a policy that allows it and no more: `audit suggest`, `audit replay`, the same again."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.live.gate import Ran, run
from tests.origins.process import HttpsOrigin
from tests.tree import ROOT

pytestmark = pytest.mark.live
NAME = "api.origin.example"
HEAD = "version = 1\n\n[egress]\nenabled = true\n"
ABOVE = """
[[rule]]
name = "nothing-yet"
action = "allow"
hosts = ["*.origin.example"]
ports = [{https}, {http}]
paths = ["/nothing"]
addresses = ["127.0.0.1/32"]
"""
ASK = (
    "for target in 'items?page=2' status; do"
    f" curl -sS -o /dev/null -w '%{{{{http_code}}}} ' \"https://{NAME}:{{https}}/$target\"; done;"
    f" curl -sS -o /dev/null -w '%{{{{http_code}}}} ' -X POST -d x=1 http://{NAME}:{{http}}/items"
)


def audit(ran: Ran, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask the log about this session."""
    assert ran.summary is not None, ran.err
    where = ("--session", ran.summary[4], "--state-dir", str(ran.log.parent))
    command = [sys.executable, "-m", "wicketgate", "audit", *words, *where]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def replayed(ran: Ran, policy: Path) -> dict[str, int]:
    done = audit(ran, "replay", "--policy", str(policy), "--json")
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)["counts"]
    return counts


def suggested(ran: Ran, policy: Path) -> str:
    done = audit(ran, "suggest", "--policy", str(policy))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.touch(0o644)
    return path


def under(policy: Path, origin: HttpsOrigin) -> list[str]:
    """Options of a run whose name leads to the origin, under a policy file."""
    options = ["--cacert", str(origin.cacert), "--policy", str(policy)]
    for port in origin.ports.values():
        options += ["--resolve", f"{NAME}:{port}:{origin.address}"]
    return options


def curl(origin: HttpsOrigin, *words: str) -> tuple[str, ...]:
    *options, target = words
    return ("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", *options, f"https://{NAME}:{origin.https}{target}")


def test_a_refused_session_is_allowed_by_what_was_suggested_for_it_and_nothing_else_is(
    https_origin: HttpsOrigin, policy: Path
) -> None:
    before = HEAD + ABOVE.format(**https_origin.ports)
    policy.write_text(before)
    options, ask = under(policy, https_origin), ASK.format(**https_origin.ports)
    refused = run("sh", "-c", ask, options=options)
    assert refused.out.split() == ["403", "403", "403"], refused.err

    text = suggested(refused, policy)
    rules = tomllib.loads(text)["rule"]
    assert all(rule["hosts"] == [NAME] for rule in rules)
    assert sorted(path for rule in rules for path in rule["paths"]) == ["/items", "/items", "/status"]
    policy.write_text(before + text)

    # What the replay says beforehand is what happens.
    beforehand = replayed(refused, policy)
    assert (beforehand["now_allowed"], beforehand["now_denied"], beforehand["untold"]) == (3, 0, 0)
    allowed = run("sh", "-c", ask, options=options)
    assert allowed.counts[:2] == (3, 0), allowed.out + allowed.err
    assert {record["rule"] for record in allowed.decisions(verdict="allow")} == {rule["name"] for rule in rules}

    # Another path, query or method is as closed as before.
    for other in (("/other",), ("/items/2",), ("/status?page=2",), ("-X", "DELETE", "/status")):
        assert run(*curl(https_origin, *other), options=options).out == "403", other

    # And back: under the first policy all of it would be denied, which an exit code can tell.
    policy.write_text(before)
    assert replayed(allowed, policy)["now_denied"] == 3
    assert audit(allowed, "replay", "--policy", str(policy), "--exit-code").returncode == 1


def test_what_was_observed_is_approved_at_once_and_then_enforced(https_origin: HttpsOrigin, policy: Path) -> None:
    rules = ABOVE.format(**https_origin.ports)
    policy.write_text(f'{HEAD}mode = "observe"\n{rules}')
    options = under(policy, https_origin)
    seen = run(*curl(https_origin, "/status"), options=options)
    assert seen.counts == (1, 0, 0), seen.err
    text = suggested(seen, policy)
    assert [rule["paths"] for rule in tomllib.loads(text)["rule"]] == [["/status"]]

    policy.write_text(HEAD + rules)
    assert replayed(seen, policy)["now_denied"] == 1
    policy.write_text(HEAD + rules + text)
    assert replayed(seen, policy)["now_denied"] == 0
    assert run(*curl(https_origin, "/status"), options=options).counts == (1, 0, 0)
    assert run(*curl(https_origin, "/other"), options=options).out == "403"
