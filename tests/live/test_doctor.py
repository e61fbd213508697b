"""`wicketgate doctor` on a host: it says what is, and its proof from inside can fail."""

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandbox.doctor.wholes import FILES_ONLY, INSIDE
from tests.tree import ROOT

pytestmark = pytest.mark.live

WICKETGATE = (sys.executable, "-m", "wicketgate")
PYTHON = "/usr/bin/python3"


def doctor(*words: str, environ: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*WICKETGATE, "doctor", "--json", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        timeout=120,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def finding(report: dict[str, Any], check: str) -> dict[str, Any]:
    return dict(next(one for one in report["findings"] if one["check"] == check))


def test_a_host_that_can_says_so() -> None:
    code, report = doctor()
    assert (code, report["exit_code"], report["modes"]) == (0, 0, {"sandbox": True, "bridge": True})
    assert {one["check"] for one in report["findings"] if one["state"] == "ok"} >= {
        *("bubblewrap", "namespaces", "cable", "sandbox", "full-access", "bridge", "clock", "disk")
    }
    assert report["facts"]["uid"] != 0, "it is the serving user that is examined"


def test_people_read_the_same_sentences() -> None:
    said = subprocess.run([*WICKETGATE, "doctor"], check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
    _, report = doctor()
    assert said.returncode == 0
    for one in report["findings"]:
        assert one["sentence"] in said.stdout


def test_the_proof_goes_through_a_run_of_ones_own() -> None:
    program = subprocess.run([*WICKETGATE, "doctor", "--inside"], check=True, capture_output=True, cwd=ROOT).stdout
    done = subprocess.run(
        [*WICKETGATE, "run", "--", PYTHON, "-I", "-"],
        check=False,
        input=program,
        capture_output=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done
    checks = json.loads(done.stdout)["checks"]
    assert len(checks) == 11
    assert all(one["ok"] for one in checks)


def test_outside_of_a_sandbox_the_proof_fails() -> None:
    """The oracle: what the checks look for is there when there is no sandbox around them."""
    done = subprocess.run([PYTHON, "-I", "-S", str(INSIDE)], check=False, capture_output=True, text=True, timeout=120)
    checks = {one["check"]: one["ok"] for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    for name in ("mounts", "rights", "system calls"):
        assert checks[name] is False, checks


def let_pass(tmp_path: Path) -> None:
    """The serving user may be another than the one who runs the tests."""
    for place in itertools.takewhile(lambda one: not one.stat().st_mode & 0o001, (tmp_path, *tmp_path.parents)):
        place.chmod(0o711)


def test_the_proof_of_full_access_fails_outside_too() -> None:
    done = subprocess.run([PYTHON, "-I", "-S", "-c", FILES_ONLY], check=True, capture_output=True, text=True)
    checks = {one["check"]: one["ok"] for one in json.loads(done.stdout)["checks"]}
    assert [checks[name] for name in ("unix sockets", "processes", "rights")] == [False] * 3


# A server that goes on in the background, until process 1 of its namespace ends.
LISTENS = (
    'import os, socket, time; s = socket.create_server(("192.0.2.1", 9)); os.fork() and os._exit(0); time.sleep(99)'
)
SPOILT = {
    "addresses": ("ip link add v0 type veth peer name v1", {}),
    "routes": ("ip link add v0 type veth peer name v1; ip addr add 10.9.9.9/24 dev v0; ip link set v0 up", {}),
    "names": ("echo '203.0.113.7 doctor.example' >/tmp/h && mount --bind /tmp/h /etc/hosts", {}),
    "reach": (f"ip link set lo up; ip addr add 192.0.2.1/32 dev lo; {PYTHON} -c '{LISTENS}'", {}),
    "socket families": ("true", {}),
    "unix sockets": (f"{PYTHON} -c 'import socket; socket.socket(1).bind(\"/tmp/listens\")'", {}),
    "mounts": ("true", {}),
    "rights": ("true", {}),
    "system calls": ("true", {}),
    "inheritance": ("true", {"OPENAI_API_KEY": "x"}),
}


@pytest.mark.parametrize("check", SPOILT)
def test_each_check_of_the_proof_finds_what_it_looks_for(check: str) -> None:
    """Namespaces of our own in which just this is not as in a sandbox."""
    script, variables = SPOILT[check]
    ready = f"mount -t tmpfs none /tmp && {{ {script}; }} && exec {PYTHON} -I -S - <&3"
    pids = ("--pid", "--fork", "--kill-child")
    own = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--mount",
        *pids,
        "sh",
        "-c",
        f"exec 3<&0 </dev/null; {ready}",
    ]
    environ = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(own, check=False, input=INSIDE.read_bytes(), capture_output=True, env=environ, timeout=120)
    checks = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert checks[check]["ok"] is False, checks


def bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o666)
    return listener


def absent(_path: Path) -> None:
    pass


def a_file(path: Path) -> None:
    path.write_text("")


def nobody(path: Path) -> None:
    bind(path).close()


def silent(path: Path) -> socket.socket:
    listener = bind(path)
    listener.listen(1)
    return listener


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (absent, "There is no broker's socket at {} (No such file or directory)."),
        (a_file, "{} is no socket."),
        (nobody, "Nobody answers at {} (Connection refused)."),
        (silent, "Nobody answers at {} (timed out)."),
    ],
)
def test_a_broker_that_does_not_answer(tmp_path: Path, make: Callable[[Path], object], sentence: str) -> None:
    let_pass(tmp_path)
    path = tmp_path / "s"
    kept = make(path)
    code, report = doctor("--attach", str(path))
    found = finding(report, "broker")
    assert code == 78
    assert found["sentence"] == sentence.format(path)
    assert found["off"] == ["bridge"]
    assert report["modes"] == {"sandbox": True, "bridge": False}
    if isinstance(kept, socket.socket):
        kept.close()


@pytest.mark.root_only
def test_a_socket_at_which_somebody_else_answers(tmp_path: Path) -> None:
    """Whoever could write the directory put a socket of its own there and gave it the broker's look."""
    let_pass(tmp_path)
    path = tmp_path / "s"
    with silent(path):
        os.chown(path, 64320, 64320)
        code, report = doctor("--attach", str(path))
    found = finding(report, "broker")
    assert (code, found["layer"], found["off"]) == (78, "broker", ["bridge"])
    assert found["sentence"] == f"{path} belongs to user 64320, but user 0 answers at it."
    assert found["cure"].startswith("Let nobody but the broker write the socket's directory")


@pytest.mark.root_only
def test_a_socket_that_the_serving_user_may_not_reach(tmp_path: Path) -> None:
    let_pass(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    with silent(closed / "s"):
        (closed / "s").chmod(0o600)
        code, report = doctor("--attach", str(closed / "s"))
    found = finding(report, "broker")
    assert code == 78
    assert found["sentence"].endswith(f"may not connect to {closed / 's'}, which belongs to user 0.")
    assert "[attach]" in found["cure"]

    closed.chmod(0o700)
    _, report = doctor("--attach", str(closed / "s"))
    assert finding(report, "broker")["sentence"].endswith(
        f"may not look into {closed}, where the broker's socket is to be."
    )


def test_without_a_place_for_the_log(tmp_path: Path) -> None:
    _, report = doctor(environ={"XDG_STATE_HOME": "", "HOME": ""})
    if os.geteuid() == 0:
        assert finding(report, "disk")["state"] == "ok"  # root's is /var/lib
    else:
        assert finding(report, "disk")["layer"] == "disk"
        assert report["modes"] == {"sandbox": True, "bridge": False}
    assert tmp_path.exists()
