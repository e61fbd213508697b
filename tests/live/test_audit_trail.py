"""The log of a run: it verifies, also after any of our processes was killed, and nothing that was tried is missing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live.gate import PATIENCE, broker_of, payload, reaching, records_of, run, started
from tests.origins.process import HttpsOrigin
from tests.tree import ROOT

pytestmark = pytest.mark.live
NAME = "origin.example"
READY = (
    "curl -sS -o /dev/null http://origin.example:{port}/; curl -sS -o /dev/null http://evil.example/;"
    "echo ready; read line"
)


def verify(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wicketgate", "audit", "verify", "--state-dir", str(directory.parent)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_a_finished_run_verifies(https_origin: HttpsOrigin) -> None:
    script = READY.format(port=https_origin.http).replace("read line", "true")
    ran = run("sh", "-c", script, options=reaching(https_origin, NAME))
    assert ran.counts == (1, 1, 0)
    done = verify(ran.log)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [record.get("event") for record in ran.records if record["kind"] == "session"]
    assert events == ["start", "end"]
    # The summary is the last line, and the only one of ours.
    assert [line for line in ran.err.splitlines() if line.startswith("wicketgate:")] == [ran.err.splitlines()[-1]]


@pytest.mark.parametrize("victim", ["broker", "runner"])
def test_what_was_decided_before_a_kill_is_on_record_and_verifies(https_origin: HttpsOrigin, victim: str) -> None:
    first = run("true", options=("--allow", NAME))
    log = first.log
    before = {path: path.stat().st_size for path in log.glob("*.jsonl")}
    with started("sh", "-c", READY.format(port=https_origin.http), options=reaching(https_origin, NAME)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        broker = broker_of(process)
        os.kill(broker if victim == "broker" else process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) == (125 if victim == "broker" else -signal.SIGKILL)
        wait_gone(broker)
    written = "".join(path.read_text("utf-8") for path in log.glob("*.jsonl") if path not in before)
    assert "evil.example" in written
    assert "rule_allow" in written
    done = verify(log)
    assert done.returncode == 0, done.stdout + done.stderr
    # The next writer repairs what the dead one left, and it still verifies.
    assert run("true", options=("--allow", NAME)).code == 0
    assert verify(log).returncode == 0


def test_every_attempt_of_a_sweep_is_on_record() -> None:
    """Two hundred ports of one address, as a scanner tries them."""
    script = (
        "import socket\n"
        "for port in range(1, 201):\n"
        "    if port == 53: continue\n"
        "    with socket.create_connection(('203.0.113.9', port), 5) as s: s.sendall(b'SSH-2.0-scan\\r\\n')"
    )
    ran = run("/usr/bin/python3", "-c", script, options=("--allow", NAME))
    wanted = {record["wanted"] for record in ran.records if record["kind"] in {"decision", "close"}}
    assert wanted == {f"203.0.113.9:{port}" for port in range(1, 201) if port != 53}
    assert records_of(ran.summary[4] if ran.summary else "", ran.log) == ran.records


def test_a_run_without_a_network_writes_no_log() -> None:
    ran = run(*payload("surroundings", '{"pathnames": [], "abstract": [], "ports": []}'))
    assert ran.code == 0
    assert ran.err == ""
