"""Starts the programs of a bench on the core they belong to, and ends them.

The first core allowed is the proxy's alone; load and origin share the next one. With a single core nothing is
comparable, so there must be two.
"""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
READY_SECONDS: Final = 20
# Of load clients and origins. A sandbox shows /usr, so ours runs under the interpreter that lies there: all others too.
INTERPRETER: Final = "/usr/bin/python3"


def cores() -> tuple[int, int]:
    """(the proxy's, the load's and the origin's)"""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("The bench needs two cores: one for the proxy, one for load and origin.")
    return allowed[0], allowed[1]


@contextmanager
def running(command: Sequence[str | Path], *, core: int, log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process, and all that it starts, pinned to a core; ended with its session when the block is left."""
    with log.open("ab") as messages:
        process = subprocess.Popen(
            [str(word) for word in command],
            text=True,
            stderr=messages,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509  the bench has no threads
            **options,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_port(port: int, process: subprocess.Popen[str], log: Path) -> None:
    """Return once the port takes connections; say what the program said when it ends instead."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        select.select([], [], [], 0.02)
    raise RuntimeError(f"{process.args!r} does not serve port {port}: {log.read_text(errors='replace')[-2000:]}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


class Talker:
    """A process that answers a JSON line with a JSON line."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def read(self, seconds: float = READY_SECONDS) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no answer within {seconds} s from {self._process.args!r}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended: {self._log.read_text(errors='replace')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, **order: Any) -> dict[str, Any]:
        """Give an order and return its result.

        Raises RuntimeError with the other side's words when it could not be carried out.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self.read(order.get("seconds", 0) + 60)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


@contextmanager
def talking(command: Sequence[str | Path], *, core: int, log: Path, **options: Any) -> Iterator[tuple[Talker, int]]:
    """A Talker that has said its first line, and its pid."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
    with running(command, core=core, log=log, cwd=ROOT, **pipes, **options) as process:
        yield Talker(process, log), process.pid


@contextmanager
def python_module(module: str, *arguments: str, core: int, log: Path) -> Iterator[tuple[Talker, int]]:
    with talking([INTERPRETER, "-m", module, *arguments], core=core, log=log) as started:
        yield started
