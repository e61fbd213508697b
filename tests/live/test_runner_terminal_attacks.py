"""Terminals of a payload that owns everything in them: their tmux, its socket, the devices of those who attach."""

import asyncio
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from tests.live.gate import PAYLOADS
from tests.live.ptys import Pty
from tests.live.runners import Daemon, alive
from tests.live.runs import PATIENCE, status, until
from wicketgate.runner.client import Authority, Runner, RunnerError, TerminalCall

pytestmark = pytest.mark.live


@asynccontextmanager
async def under_a_false_server(served: Daemon, runner: Runner, answer: str, times: int = 1) -> AsyncIterator[str]:
    place = served.workspace(f"false-{os.urandom(4).hex()}")
    (place / "false.py").write_text((PAYLOADS / "false_tmux.py").read_text())
    opened = await runner.open_terminal(authority=Authority(workspace=str(place)))
    line = f"(sleep 0.1; exec /usr/bin/python3 false.py {shlex.quote(answer)} {times}) &"
    await runner.send(opened.id, line, keys=("Enter",))
    await asyncio.to_thread(until, (place / "false-is-up").exists)
    yield opened.id
    await runner.close_terminal(opened.id)


async def refusal(asked: Awaitable[object]) -> str:
    (answer,) = await asyncio.gather(asked, return_exceptions=True)
    assert isinstance(answer, RunnerError), answer
    return answer.code


@pytest.mark.parametrize(
    "answer",
    ["", "no", "1 80 24 0 0 0 \\u00b2\\n", "9" * 5000 + " 80 24 0 0 0 0\\n", "1 " + "9" * 30 + " 24 0 0 0 0\\n"],
)
async def test_a_false_servers_answer_is_a_refusal(served: Daemon, runner: Runner, answer: str) -> None:
    async with under_a_false_server(served, runner, answer) as terminal:
        for asked in (runner.show_terminal(terminal), runner.read(terminal), runner.run_in_terminal(terminal, "true")):
            assert await refusal(asked) == "session_over"
        assert terminal in {one.id for one in await runner.terminals()}


async def test_a_false_servers_picture_holds_no_sequence(served: Daemon, runner: Runner) -> None:
    answer = "1 80 24 0 0 0 0\\n\\x1b]0;title\\x07\\u009b2J\\n"
    async with under_a_false_server(served, runner, answer) as terminal:
        assert await refusal(runner.read(terminal)) == "session_over", "its answer to another question is no state"
    async with under_a_false_server(served, runner, "1 80 24 0 0 0 0\\x1f\\u009d\\n") as terminal:
        assert await refusal(runner.read(terminal)) == "session_over"
    async with under_a_false_server(served, runner, "1 80 24 0 0 0 0\\n") as terminal:
        assert (await runner.read(terminal)).lines == ["1 80 24 0 0 0 0"]


async def test_an_answer_without_an_end_takes_no_memory(served: Daemon, runner: Runner) -> None:
    serving = served.processes()[2]
    before = int(status(serving)["VmHWM"].split()[0])
    async with under_a_false_server(served, runner, "1 80 24 0 0 0 " + "0" * 60_000, 1000) as terminal:
        assert await refusal(runner.read(terminal)) == "bad_call"
    assert int(status(serving)["VmHWM"].split()[0]) < before + 20_000


async def test_a_command_that_stops_tmux_is_ended_when_its_time_is_up(runner: Runner) -> None:
    """Nothing but the end of the terminal ends it; it does not outlive its time."""
    opened = await runner.open_terminal()
    mark = f"stops-{os.urandom(6).hex()}"
    begun = time.monotonic()
    done = await runner.run_in_terminal(opened.id, f"pkill -STOP tmux; bash -c 'exec -a {mark} sleep 300'", seconds=1)
    assert (done.code, done.timed_out) == (None, True)
    assert not alive(mark)
    assert (await runner.show_terminal(opened.id)).state == "ended"
    assert time.monotonic() - begun < 25, "a server that stands still is not asked for as long as one that is slow"


@pytest.mark.parametrize("name", ["#(touch planted)", "x#{session_name}", "##[x", "x;", "-t", "%H", "'\"`$x ü"])
async def test_a_directory_of_any_name_is_where_the_shell_begins(served: Daemon, runner: Runner, name: str) -> None:
    place = served.workspace("named")
    (place / name).mkdir(exist_ok=True)
    (place / name).chmod(0o777)
    call, authority = TerminalCall(directory=name), Authority(workspace=str(place))
    opened = await runner.open_terminal(call, authority)
    assert (await runner.run_in_terminal(opened.id, "pwd")).output == f"{place}/{name}\n"
    stubborn = await runner.run_in_terminal(opened.id, "trap '' INT HUP TERM; while :; do :; done", seconds=0.5)
    assert stubborn.shell_replaced
    assert (await runner.run_in_terminal(opened.id, "pwd")).output == f"{place}/{name}\n"
    assert not list(place.rglob("planted"))
    await runner.close_terminal(opened.id)


def attach(served: Daemon, terminal: str) -> list[str]:
    words = [sys.executable, "-m", "wicketgate", "term", "attach", "--socket", str(served.socket), terminal]
    return ["/usr/bin/env", "TERM=xterm-256color", *words]


EVIL = r"""
printf '\033]52;c;ZXZpbA==\033\\\033[6n\033[c\033]0;title\007\033P$qm\033\\\302\2336n\033[?1049h\033[?1003h' >$1
printf 'was-%s' written >$1
"""


async def test_what_a_payload_writes_to_an_attached_terminal_only_draws(served: Daemon, runner: Runner) -> None:
    """The person's client is on a terminal of the sandbox's, to which everything inside may write."""
    opened = await runner.open_terminal()
    await runner.run_in_terminal(opened.id, f"cat >/tmp/evil <<'END'\n{EVIL}\nEND")

    def person() -> bytes:
        with Pty(attach(served, opened.id)) as pty:
            seen = pty.wait_for(r"\$ ").string
            pty.type("for t in /dev/pts/[0-9]*; do [ $t = $(tty) ] || bash /tmp/evil $t; done\r")
            seen += pty.wait_for("was-written").string
            pty.shown = b""
            pty.type("\x1d")
            assert pty.end() == 0
            last = pty.shown
        assert b"\x1b[?1003l" in last, "the mode that it left is given back"
        return seen + last

    seen = await asyncio.to_thread(person)
    assert not re.search(rb"\x1b[\]P]|\x1b\[[0-9;?>]*[nc]|\xc2[\x80-\x9f]", seen)
    await runner.close_terminal(opened.id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_persons_client_that_is_ended_gives_the_terminal_back(
    served: Daemon, runner: Runner, number: int
) -> None:
    opened = await runner.open_terminal()

    def person() -> None:
        with Pty(["/bin/bash", "--norc", "-i"]) as pty:
            pty.wait_for("ready> ")
            pty.type("before=$(stty -g)\r")
            pty.wait_for("ready> ")
            pty.type(" ".join(map(shlex.quote, attach(served, opened.id))) + "\r")
            pty.wait_for(r"\$ ")
            client = until(lambda: next(iter(alive(opened.id)), None))
            os.kill(client, number)
            pty.wait_for("ready> ")
            pty.type('echo code-$?; [ "$before" = "$(stty -g)" ] && echo as-it-$((1))-was\r')
            pty.wait_for(f"code-{128 + number}")
            pty.wait_for("as-it-1-was")

    await asyncio.to_thread(person)
    assert (await runner.show_terminal(opened.id)).state == "open"
    await runner.close_terminal(opened.id)


async def test_a_terminal_that_the_host_knows_nothing_of_can_be_attached_to(served: Daemon, runner: Runner) -> None:
    opened = await runner.open_terminal()

    def person() -> None:
        words = ["TERM=of-tomorrow" if word.startswith("TERM=") else word for word in attach(served, opened.id)]
        with Pty(words) as pty:
            pty.wait_for(r"\$ ")
            pty.type("echo shown-$((2+2))\r")
            pty.wait_for("shown-4")
            pty.type("\x1d")
            assert pty.end() == 0

    await asyncio.to_thread(person)
    await runner.close_terminal(opened.id)


async def test_a_terminal_without_a_size_can_be_attached_to(served: Daemon, runner: Runner) -> None:
    """As that of a container engine is at first, and a serial line's always."""
    opened = await runner.open_terminal()

    def person() -> None:
        with Pty(attach(served, opened.id), rows=0, columns=0) as pty:
            pty.type("echo typed-$((1+1))-ahead\r")
            pty.wait_for("typed-2-ahead")
            pty.resize(0, 0)
            os.kill(pty.pid, signal.SIGWINCH)
            pty.type("echo still-$((2+2))\r")
            pty.wait_for("still-4")
            pty.type("\x1d")
            assert pty.end() == 0

    await asyncio.to_thread(person)
    await runner.close_terminal(opened.id)


async def test_two_people_a_storm_of_sizes_and_a_payload_that_detaches_them(served: Daemon, runner: Runner) -> None:
    opened = await runner.open_terminal()
    peers = [runner.attach(opened.id, columns=80, rows=24, term="xterm-256color") for _ in range(2)]
    async with asyncio.timeout(PATIENCE), peers[0] as one, peers[1] as other:
        for _ in range(300):
            await one.send_str('{"columns":2,"rows":2}')
            await other.send_str('{"columns":1000,"rows":1000}')
        assert (await one.receive()).data
        assert (await other.receive()).data
        await asyncio.gather(*(runner.resize(opened.id, 60 + number, 20) for number in range(20)))
        await one.send_bytes(b"tmux rename-session x; tmux detach-client -a; tmux detach-client -s x\r")
        for peer in (one, other):
            while not (await peer.receive()).type.name.startswith("CLOS"):
                pass
    assert (await runner.run_in_terminal(opened.id, "echo on")).output == "on\n"
    await runner.close_terminal(opened.id)
