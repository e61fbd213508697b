"""`wicketgate run --runner`: a running runner or nothing; what it says and how it ends is as without one."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.runners import Daemon, alive
from tests.live.runs import until

pytestmark = pytest.mark.live


def words(served: Daemon, *command: str, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "wicketgate", "run", "--runner", str(served.socket), *options, "--", *command]


def through(
    served: Daemon, *command: str, options: tuple[str, ...] = (), stdin: bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    told = words(served, *command, options=options)
    if stdin is None:
        return subprocess.run(told, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd=cwd, env=environ)
    return subprocess.run(told, input=stdin, capture_output=True, check=False, cwd=cwd, env=environ)


def test_the_streams_and_the_code_are_the_commands(served: Daemon) -> None:
    done = through(served, "bash", "-c", "cat; echo err >&2; exit 7", stdin=b"typed\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"typed\n", b"err\n")
    assert through(served, "bash", "-c", "kill -9 $$").returncode == 137
    assert through(served, "cat").stdout == b""


def test_every_byte_of_the_output_arrives(served: Daemon) -> None:
    script = "import random, sys; random.seed(7); sys.stdout.buffer.write(random.randbytes(2_000_000))"
    expected = subprocess.run(["/usr/bin/python3", "-c", script], capture_output=True, check=True).stdout
    assert len(expected) == 2_000_000
    assert through(served, "/usr/bin/python3", "-c", script).stdout == expected


def test_a_workspace_is_named_from_where_one_is(served: Daemon) -> None:
    place = served.workspace("through")
    done = through(served, "bash", "-c", "pwd; touch made", options=("--workspace", place.name), cwd=place.parent)
    assert (done.stdout, done.stderr) == (f"{place}\n".encode(), b"")
    assert (place / "made").exists()


def test_what_the_runner_refuses_is_said_and_nothing_is_executed(served: Daemon) -> None:
    missing = through(served, "no-such-program")
    assert (missing.returncode, missing.stdout) == (127, b"")
    assert b"no-such-program" in missing.stderr
    refused = through(served, "echo", "ran", options=("--workspace", "/etc"))
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"/etc" in refused.stderr
    granted = through(served, "echo", "ran", options=("--grant", "g-1"))
    assert (granted.returncode, granted.stdout) == (125, b"")
    assert b"broker" in granted.stderr
    binary = through(served, "cat", stdin=b"\xff\xfe")
    assert (binary.returncode, binary.stdout) == (125, b"")


def test_without_a_runner_nothing_is_executed(served: Daemon, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    command = [sys.executable, "-m", "wicketgate", "run", "--runner", str(tmp_path / "none.sock")]
    done = subprocess.run([*command, "--", "touch", str(mark)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"No runner can be reached" in done.stderr
    assert not mark.exists()


@pytest.mark.parametrize(
    "options",
    [("--allow", "a.example"), ("--json",), ("--socket", "/x"), ("--policy", "p.toml"), ("--timeout", "0"), ("--no",)],
)
def test_what_only_a_run_of_its_own_has_is_refused(served: Daemon, options: tuple[str, ...]) -> None:
    done = through(served, "echo", "ran", options=options)
    assert done.returncode == 125
    assert b"ran" not in done.stdout.split()


def test_the_time_is_limited(served: Daemon) -> None:
    done = through(served, "sleep", "100", options=("--timeout=0.3",))
    assert done.returncode == 124
    assert b"time limit" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_end_of_the_client_is_the_end_of_the_command(served: Daemon, number: signal.Signals) -> None:
    mark = f"mark-{secrets.token_hex(6)}"
    command = words(served, "bash", "-c", f"trap '' TERM INT HUP; exec -a {mark} sleep 999")
    client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until(lambda: bool(alive(f"{mark}\0")))
    client.send_signal(number)
    _, said = client.communicate(timeout=10)
    assert b"Traceback" not in said
    assert client.returncode in {130, -number}
    until(lambda: not alive(f"{mark}\0"))


def test_a_reader_that_goes_ends_the_command(served: Daemon) -> None:
    mark = f"mark-{secrets.token_hex(6)}"
    command = words(served, "bash", "-c", f"exec -a {mark} yes")
    client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.read(2) == b"y\n"
    client.stdout.close()
    assert client.wait(10) == 125
    until(lambda: not alive(f"{mark}\0"))


def test_little_is_loaded(served: Daemon) -> None:
    """Modules are most of a start: those that take long stay out."""
    loaded = modules_loaded_by(words(served, "true")[1:])
    assert "wicketgate.through" in loaded
    assert not loaded & {"click", "asyncio", "aiohttp", "msgspec", "typing_extensions", "dataclasses", "ctypes", "ssl"}


def test_little_is_loaded_without_a_runner() -> None:
    loaded = modules_loaded_by(["-m", "wicketgate", "run", "--", "true"])
    assert "sandbox.construct" in loaded
    assert not loaded & {"click", "asyncio", "aiohttp", "dataclasses", "json", "ssl", "broker"}


def test_little_is_loaded_for_a_workspace(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = str(tmp_path_factory.mktemp("work"))
    loaded = modules_loaded_by(["-m", "wicketgate", "run", "--workspace", place, "--", "true"])
    assert "sandbox.protect.keeper" in loaded
    assert not loaded & {"click", "asyncio", "aiohttp", "dataclasses", "hashlib", "secrets", "ssl"}


def modules_loaded_by(told: list[str]) -> set[str]:
    command = [sys.executable, "-X", "importtime", *told]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_both_processes_of_a_run_collect_garbage_once_all_is_loaded() -> None:
    program = (
        "import gc, os, sys; leave = os._exit\n"
        "def tell(code): os.write(2, b'collects %d\\n' % gc.isenabled()); leave(code)\n"
        "os._exit = tell; from wicketgate.__main__ import main; main()"
    )
    told = [sys.executable, "-c", program, "run", "--allow", "origin.example", "--", "true"]
    done = subprocess.run(told, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stderr.count(b"collects 1\n") == 2
    assert b"collects 0\n" not in done.stderr
