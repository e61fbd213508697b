"""A keeper that somebody has stopped (SIGSTOP): nothing waits for it without an end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.live.runners import daemon
from tests.live.runs import KEEPER, find, line, running, status, until
from wicketgate.runner.client import Authority, Call

pytestmark = pytest.mark.live


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: status(pid)["State"].startswith("T"))


def test_a_run_ends(workspace: Path) -> None:
    words = ("--workspace", str(workspace), "--", "sh", "-c", "echo up; read word; echo $word >said")
    with running(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as front:
        assert line(front.stdout) == "up"
        keeper = until(lambda: find(front.pid, KEEPER))
        stop(keeper)
        assert front.stdin is not None
        front.stdin.write(b"fine\n")
        front.stdin.flush()
        assert front.wait(60) == 0
    assert (workspace / "said").read_text() == "fine\n"
    assert [entry.name for entry in workspace.iterdir()] == ["said"], "nothing held is left"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_runner_ends(number: int) -> None:
    with daemon() as made:
        authority = Authority(workspace=str(made.workspace()))
        gate, _, runner, keeper = made.processes()
        async with made.client() as client:
            session = await client.open_session(authority)
            stop(keeper)
            done = await client.run_in(session.id, Call(bash="echo fine"))
            assert done.stdout == b"fine\n"
        assert made.process is not None
        os.kill(runner if number == signal.SIGKILL else gate, number)
        made.process.wait(60)
        made.process = None
        until(lambda: not list((made.directory / "work").iterdir()))
