"""Descriptors that run out, in a daemon or in flight: whoever asks is told, and no payload brings it about."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.runs import MOST_LEFT
from tests.live.daemons import broker_daemon
from tests.live.ptys import Pty
from tests.live.runners import Daemon, daemon, serving_uid
from tests.live.runs import children, line, running, until
from wicketgate.runner.client import Call, Runner, RunnerError

pytestmark = pytest.mark.live
RULES = '[[rule]]\nname = "one"\naction = "allow"\nhosts = ["api.example.com"]\n'
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
# Sends descriptors that nobody takes until the kernel lets this user have no more of them under way (unix(7)).
IN_FLIGHT = """
import array, resource, signal, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
pairs = []
try:
    while True:
        pairs.append(socket.socketpair())
        near = pairs[-1][0]
        near.setblocking(False)
        rights = array.array("i", [near.fileno()] * 250)
        try:
            while True:
                near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BlockingIOError:
            pass
except OSError as error:
    print(error.errno, flush=True)
signal.pause()
"""
# Keeps the pipes of each call that hands them over, and says how many of them nobody reads any more (poll(2)).
COLLECT = """
import os, select, socket
taker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
taker.bind("/tmp/taker")
if os.fork() == 0:
    os.setsid()
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    kept = select.poll()
    while True:
        for pipe in socket.recv_fds(taker, 1, 2)[1]:
            kept.register(pipe, 0)
        unread = sum(bool(event & select.POLLERR) for _, event in kept.poll(0))
        with open("/tmp/unread", "w") as file:
            file.write(str(unread))
"""
HAND_OVER = """
import socket
giver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
giver.connect("/tmp/taker")
socket.send_fds(giver, [b"x"], [1, 2])
"""
ETOOMANYREFS = "109"


@contextmanager
def too_many_in_flight() -> Iterator[None]:
    """A payload of the serving user that has as many descriptors in flight as it may."""
    with running("--", "/usr/bin/python3", "-c", IN_FLIGHT, stdout=subprocess.PIPE) as flood:
        assert line(flood.stdout) == ETOOMANYREFS
        yield


@contextmanager
def connected(path: Path, number: int) -> Iterator[list[socket.socket]]:
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(number)]
    try:
        for one in held:
            one.settimeout(60)
            one.connect(str(path))
        yield held
    finally:
        for one in held:
            one.close()


def told(one: socket.socket) -> dict[str, object]:
    """The problem document of an answer that nobody asked for."""
    answer = b""
    while more := one.recv(65536):
        answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n"), answer
    document: dict[str, object] = json.loads(body)
    return document


async def test_a_payload_does_not_keep_the_runner_from_taking_connections() -> None:
    # What many service managers start a daemon with is less than what a payload may have.
    with daemon(prefix=("prlimit", f"--nofile=1024:{HARD}")) as made, too_many_in_flight():
        for _ in range(2):
            async with made.client() as runner:
                assert (await runner.run(Call(bash="echo fine"))).stdout == b"fine\n"


async def test_a_payload_does_not_keep_others_from_their_terminals() -> None:
    """A client of tmux hands its streams over; the kernel counts what is under way for all processes of a user."""
    with daemon() as made:
        async with made.client() as runner:
            before = await runner.open_terminal()
            with too_many_in_flight():
                for terminal in (before, await runner.open_terminal()):
                    for _ in range(3):
                        done = await runner.run_in_terminal(terminal.id, "echo fine; ulimit -Hn", seconds=20)
                        assert done.output == f"fine\n{min(4096, HARD - 1024)}\n", "the payload itself has no more"
                    await runner.resize(terminal.id, 90, 30)
                with_person = [sys.executable, "-m", "wicketgate", "term", "attach", "--socket", str(made.socket)]
                with Pty(["/usr/bin/env", "TERM=xterm-256color", *with_person, before.id]) as pty:
                    await asyncio.to_thread(pty.wait_for, r"\$ ")
        assert "another is tried" not in made.log


def test_a_payload_does_not_keep_the_broker_from_taking_connections() -> None:
    with too_many_in_flight(), broker_daemon(RULES, prefix=("prlimit", f"--nofile=1024:{HARD}")) as broker:
        for _ in range(2):
            assert broker.ask("GET", "/v1/grants")[0] == 200


async def test_a_payload_has_fewer_descriptors_than_those_who_serve_it() -> None:
    with daemon(prefix=("prlimit", "--nofile=3000:3000")) as made:
        async with made.client() as runner:
            for call in (Call(bash="ulimit -Hn"), Call(python="import resource as r; print(r.getrlimit(7)[1])")):
                assert int((await runner.run(call)).stdout) == 3000 - 1024


def test_a_runner_without_descriptors_says_so() -> None:
    with daemon(prefix=("prlimit", "--nofile=128:128"), extra="parked = 0") as made:
        for _ in range(3):  # what is kept for an answer does not add up
            with connected(made.socket, 128) as held:
                document = told(held[-1])
                assert (document["code"], document["status"]) == ("exhausted", 503)
                assert "no file descriptor left" in str(document["detail"])
            until(lambda: _serves(made))


def test_a_runner_that_serves_as_many_as_it_can_says_so() -> None:
    with daemon() as made, connected(made.socket, 513) as held:
        document = told(held[-1])
        assert (document["code"], document["status"]) == ("exhausted", 503)


def test_a_broker_that_serves_as_many_as_it_can_says_so() -> None:
    with broker_daemon(RULES) as broker:
        with connected(broker.control, 257) as held:
            document = told(held[-1])
            assert (document["code"], document["status"]) == ("not_taken", 503)
        until(broker.is_ready)


def test_a_broker_without_descriptors_says_so() -> None:
    with broker_daemon(RULES, prefix=("prlimit", "--nofile=128:128")) as broker:
        with connected(broker.control, 128) as held:
            document = told(held[-1])
            assert (document["code"], document["status"]) == ("not_taken", 503)
            assert "no file descriptor left" in str(document["detail"])
        until(broker.is_ready)


def test_a_runner_that_stands_still_is_waited_for() -> None:
    with daemon() as made:
        runner = made.processes()[2]
        os.kill(runner, signal.SIGSTOP)
        with connected(made.socket, 400) as held:  # more than the channel between the two holds
            for one in held:
                one.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            os.kill(runner, signal.SIGCONT)
            assert {one.recv(15) for one in held} == {b"HTTP/1.1 200 OK"}
        assert made.stop() == 0


def _serves(made: Daemon) -> bool:
    ask = ["curl", "-sf", "--unix-socket", str(made.socket), "http://localhost/v1/health"]
    return subprocess.run(ask, capture_output=True, check=False).returncode == 0


def bound(pid: int, number: int) -> None:
    """Set how many descriptors a process may have, as its user: root need not have the right to."""
    user = str(serving_uid())
    become = () if os.geteuid() else ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    subprocess.run([*become, "prlimit", "--pid", str(pid), f"--nofile={number}:"], check=True)


async def attempts(runner: Runner, kind: str) -> Callable[[], Awaitable[object]]:
    """What to try again and again; it is done once, so that what is kept ready for it is there."""
    if kind == "session":
        session = (await runner.open_session()).id
        await runner.run_in(session, Call(bash="true"))
        return lambda: runner.run_in(session, Call(bash="true"))
    if kind == "terminal":
        terminal = (await runner.open_terminal()).id
        await runner.run_in_terminal(terminal, "true")
        return lambda: runner.run_in_terminal(terminal, "true")
    await runner.wait_job((await runner.start_job(Call(bash="true"))).id)
    return lambda: runner.start_job(Call(bash="true"))


@pytest.mark.parametrize("kind", ["session", "terminal", "job"])
async def test_what_fails_for_want_of_descriptors_leaves_nothing(kind: str) -> None:
    with daemon(extra="parked = 0") as made:
        served = made.processes()[2]
        async with made.client() as runner:
            attempt = await attempts(runner, kind)
            here = until(lambda: children(served))
            refused = 0
            for number in range(16, 200):
                jobs = len(list((made.state / "jobs").iterdir()))
                bound(served, number)
                try:
                    await attempt()
                except RunnerError as error:
                    if error.status != 503:
                        raise
                    refused += 1
                else:
                    break
                finally:
                    bound(served, 4096)
                assert len(list((made.state / "jobs").iterdir())) == jobs
            assert refused > 3
            # One may wait for the next sandbox and one for its next command by now.
            until(lambda: len(children(served)) <= len(here) + 2)


async def test_a_payload_that_keeps_the_pipes_of_its_calls_does_not_use_the_runners_descriptors_up() -> None:
    calls = MOST_LEFT // 2 + 20
    with daemon() as served:
        async with served.client() as runner, runner.session() as opened:
            await runner.run_in(opened.id, Call(python=COLLECT))
            for _ in range(calls):
                assert (await runner.run_in(opened.id, Call(python=HAND_OVER))).code == 0
            unread = int((await runner.run_in(opened.id, Call(bash="cat /tmp/unread"))).stdout)
            assert 0 < unread <= 2 * calls - MOST_LEFT
