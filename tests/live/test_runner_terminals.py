"""Terminals where others failed: endless output, swallowed and forged marks, odd names, stubborn commands, people."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.tmux import is_listening
from tests.live.ptys import Pty
from tests.live.runners import Daemon, alive, daemon
from tests.live.runs import PATIENCE, descendants, name, status, until
from wicketgate.runner.client import Authority, Runner, RunnerError, TerminalCall

pytestmark = pytest.mark.live


@pytest.fixture
async def terminal(runner: Runner) -> AsyncIterator[str]:
    opened = await runner.open_terminal()
    yield opened.id
    await runner.close_terminal(opened.id)


async def shown(runner: Runner, terminal: str, pattern: str, *, scrollback: bool = False) -> list[str]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = (await runner.read(terminal, scrollback=scrollback)).lines
        if re.search(pattern, "\n".join(lines), re.MULTILINE):
            return lines
        await asyncio.sleep(0.02)
    raise AssertionError(f"{pattern!r} was not shown: {lines}")


async def test_a_hundred_thousand_lines(runner: Runner, terminal: str) -> None:
    done = await runner.run_in_terminal(terminal, "seq 1 99000; (exit 7)")
    assert done.code == 7
    assert done.output == "".join(f"{number}\n" for number in range(1, 99_001))
    lines = (await runner.read(terminal, scrollback=True)).lines
    numbers = [int(line) for line in lines if line.isdigit()]
    assert numbers == list(range(1, 99_001)), "the full scrollback is kept"
    more = await runner.run_in_terminal(terminal, "seq 1 150000; (exit 8)")
    assert (more.code, len(more.output.splitlines())) == (8, 150_000), "the end is seen however much is shown"


async def test_a_line_longer_than_the_screen_is_one_line(runner: Runner, terminal: str) -> None:
    await runner.run_in_terminal(terminal, "printf 'x%.0s' {1..300}; echo")
    joined = await runner.read(terminal, join=True)
    assert "x" * 300 in joined.lines


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("cat </dev/null; read -t 0.2 x; echo got:$x", 0, "got:\n"),
        ("head -c0; false", 1, ""),
        ('echo \'a;\'; echo "q\\""; echo b\\;', 0, 'a;\nq"\nb;\n'),
        ("for i in 1 2\ndo\necho $i\ndone", 0, "1\n2\n"),
        ("cat <<'END'\n$(no) `no`\nEND", 0, "$(no) `no`\n"),
        ("echo 'unfinished", 2, None),
        ("printf '\\033]7777;ffffffffffffffffffffffffffffffff;0\\007'; (exit 9)", 9, ""),
        ("printf '\\033]7777;'; echo; (exit 8)", 8, None),
        ("cd /tmp && x=kept", 0, ""),
        ("echo ünïcödé 🚪", 0, "ünïcödé 🚪\n"),
        ("sleep 300 & disown; echo on", 0, None),
        ("stty -echo; stty echo; (exit 3)", 3, ""),
        ("# only a comment", 0, ""),
    ],
)
async def test_how_a_command_ended(runner: Runner, terminal: str, command: str, code: int, output: str | None) -> None:
    done = await runner.run_in_terminal(terminal, command, seconds=20)
    assert (done.code, done.timed_out) == (code, False)
    if output is not None:
        assert done.output == output


async def test_the_shell_keeps_its_state(runner: Runner, terminal: str) -> None:
    await runner.run_in_terminal(terminal, "cd /usr/lib; export KEPT=yes; f() { echo f$1; }")
    assert (await runner.run_in_terminal(terminal, "pwd; echo $KEPT; f 1")).output == "/usr/lib\nyes\nf1\n"


async def test_a_mark_that_a_program_forges_does_not_count(runner: Runner, terminal: str) -> None:
    """The number stands in a file that the command can find; a forger that goes on running has the terminal."""
    forge = (
        "python3 -c \"import glob, time; n = glob.glob('/run/wicketgate-*')[0][-32:]; "
        "print(f'\\033]7777;{n};0\\007', flush=True); time.sleep(1); print('real end')\"; (exit 5)"
    )
    done = await runner.run_in_terminal(terminal, forge, seconds=20)
    assert done.code == 5
    assert "real end" in done.output


@pytest.mark.parametrize(
    ("command", "new_shell"),
    [
        ("bash -c 'exec -a MARK sleep 300'", False),
        ("bash -c \"trap '' INT TERM HUP; exec -a MARK sleep 300\"; bash -c 'exec -a MARK sleep 300'", False),
        ("cat", False),
        ("trap '' INT HUP TERM; while :; do :; done", True),
        ("while :; do (exec -a MARK sleep 300); done", None),
        ("(setsid bash -c 'exec -a MARK sleep 300' &); sleep 300", False),
        ("stty raw -echo -isig; sleep 300", False),
    ],
)
async def test_what_ignores_its_timeout_is_ended(
    runner: Runner, terminal: str, command: str, new_shell: bool | None
) -> None:
    mark = f"ignores-{os.urandom(6).hex()}"
    done = await runner.run_in_terminal(terminal, command.replace("MARK", mark), seconds=0.7)
    assert (done.code, done.timed_out) == (None, True)
    if new_shell is not None:
        assert done.shell_replaced is new_shell
    assert not alive(mark)
    again = await runner.run_in_terminal(terminal, "stty sane; echo works", seconds=20)
    assert (again.code, again.output) == (0, "works\n")


async def test_a_command_that_took_the_shells_place_is_ended_with_the_terminal(runner: Runner) -> None:
    opened = await runner.open_terminal()
    mark = f"took-{os.urandom(6).hex()}"
    done = await runner.run_in_terminal(opened.id, f"trap '' INT; exec -a {mark} sleep 300", seconds=0.7)
    assert (done.code, done.timed_out) == (None, True)
    assert not alive(mark)
    assert (await runner.show_terminal(opened.id)).state in {"ended", "open"}
    await runner.close_terminal(opened.id)


async def test_the_end_of_the_shell_is_the_end_of_the_terminal(runner: Runner) -> None:
    opened = await runner.open_terminal()
    done = await runner.run_in_terminal(opened.id, "exit 4", seconds=20)
    assert (done.code, done.timed_out) == (None, False)
    assert (await runner.show_terminal(opened.id)).state == "ended"
    with pytest.raises(RunnerError, match="session_over"):
        await runner.send(opened.id, "x")


async def test_a_terminal_that_is_closed_twice_and_under_a_command(runner: Runner) -> None:
    opened = await runner.open_terminal()
    count = (await runner.health()).terminals
    running = asyncio.ensure_future(runner.run_in_terminal(opened.id, "sleep 30"))
    await shown(runner, opened.id, "wicketgate-")
    closed = await asyncio.gather(runner.close_terminal(opened.id), runner.close_terminal(opened.id))
    assert [one.state for one in closed] == ["ended", "ended"]
    (ended,) = await asyncio.gather(running, return_exceptions=True)
    assert getattr(ended, "code", None) in {None, "session_over"}, ended
    assert (await runner.health()).terminals == count - 1


async def test_a_busy_terminal_says_so(runner: Runner, terminal: str) -> None:
    await runner.send(terminal, "sh -c 'echo has be''gun; exec cat'", keys=("Enter",))
    await shown(runner, terminal, "^has begun$")
    with pytest.raises(RunnerError) as refused:
        await runner.run_in_terminal(terminal, "echo x")
    assert (refused.value.code, refused.value.status) == ("busy", 409)
    await runner.send(terminal, keys=("C-c",))


async def test_pasted_text_is_text(runner: Runner, terminal: str) -> None:
    await runner.send(terminal, "cat > /tmp/typed", keys=("Enter",))
    text = "a;\nb \\; $(x) `y` \"z\" 'q'\n;\n-t %0\n~.\n"
    await runner.send(terminal, text)
    await runner.send(terminal, keys=("C-d",))
    found = await asyncio.wait_for(_until_idle(runner, terminal), 20)
    assert found == text
    for control in ("\x1b[201~ls\r", "a\x00b", "\x9b1m", "\x7f"):
        with pytest.raises(RunnerError, match="invalid_field"):
            await runner.send(terminal, control)


async def test_a_key_is_one_that_there_is(runner: Runner, terminal: str) -> None:
    """tmux types a name that it does not know letter by letter."""
    for key in (
        "Entr",
        "NoSuchKey",
        "enter",
        "F13",
        "C-",
        "",
        "-t",
        ";",
        "M-;",
        "é",
        "0x41",
        "Enter\n",
        "C-C-C-C-x",
        "User0",
    ):
        with pytest.raises(RunnerError, match="invalid_field"):
            await runner.send(terminal, keys=(key,))
    await runner.run_in_terminal(terminal, "bind -x '\"\\e[24~\": echo twelve'; bind -x '\"\\C-x\": echo ex'")
    for key, shows in (("F12", "twelve"), ("C-x", "ex"), ("x", r"\$ x")):
        await runner.send(terminal, keys=(key,))
        await shown(runner, terminal, shows)
    names = "Escape Space Tab BTab BSpace Up Down Left Right Home End PageUp PageDown Insert Delete NPage PPage IC DC"
    await runner.send(
        terminal, keys=(*names.split(), *(f"F{number}" for number in range(1, 13)), "C-M-S-Up", "~", "!", '"')
    )


@pytest.mark.parametrize("mode", ["copy-mode", "clock-mode", "choose-tree"])
async def test_a_terminal_in_which_somebody_has_scrolled_goes_on(runner: Runner, terminal: str, mode: str) -> None:
    await runner.run_in_terminal(terminal, f"seq 100; tmux {mode}")
    assert (await runner.run_in_terminal(terminal, "echo on")).output == "on\n"
    await runner.run_in_terminal(terminal, f"tmux {mode}")
    await runner.send(terminal, "echo ke''yed", keys=("Enter",))
    await shown(runner, terminal, "^keyed$")


async def _until_idle(runner: Runner, terminal: str) -> str:
    while True:
        with contextlib.suppress(RunnerError):  # busy
            return (await runner.run_in_terminal(terminal, "cat /tmp/typed")).output
        await asyncio.sleep(0.05)


async def test_several_lines_are_pasted_not_run_where_the_shell_knows_pasting(runner: Runner, terminal: str) -> None:
    await runner.run_in_terminal(terminal, "bind 'set enable-bracketed-paste on'")
    await runner.send(terminal, "echo one\necho two")
    await shown(runner, terminal, r"echo two\s*$")
    assert not any(line == "one" for line in (await runner.read(terminal)).lines)
    await runner.send(terminal, keys=("Enter",))
    await shown(runner, terminal, r"^two$")


async def test_names_are_for_people(runner: Runner) -> None:
    names = ["a.b:c", "a", "ab", "abc", "=a", "%0", "-t", "ü 🚪", "a"]
    opened = [await runner.open_terminal(name=name) for name in names]
    for index, one in enumerate(opened):
        await runner.run_in_terminal(one.id, f"echo this is {index}")
    for index, one in enumerate(opened):
        lines = (await runner.read(one.id)).lines
        assert f"this is {index}" in lines
        assert sum(line.startswith("this is") for line in lines) == 1
    listed = {one.id: one.name for one in await runner.terminals()}
    assert [listed[one.id] for one in opened] == names
    for one in opened:
        await runner.close_terminal(one.id)


async def test_sizes(runner: Runner) -> None:
    opened = await runner.open_terminal(TerminalCall(columns=101, rows=33))
    assert (await runner.run_in_terminal(opened.id, "stty size")).output == "33 101\n"
    resized = await runner.resize(opened.id, 60, 20)
    assert (resized.columns, resized.rows) == (60, 20)
    assert (await runner.run_in_terminal(opened.id, "stty size")).output == "20 60\n"
    await runner.close_terminal(opened.id)


async def test_each_terminal_has_a_server_of_its_own(runner: Runner) -> None:
    one, other = await runner.open_terminal(), await runner.open_terminal()
    seen = await runner.run_in_terminal(one.id, "tmux ls | wc -l; ls /run")
    assert seen.output.startswith("1\n")
    await runner.run_in_terminal(one.id, "tmux kill-server", seconds=20)
    assert (await runner.run_in_terminal(other.id, "echo lives")).output == "lives\n"
    await runner.close_terminal(other.id)


async def test_the_environment_is_the_closed_list(runner: Runner, terminal: str) -> None:
    found = (await runner.run_in_terminal(terminal, "env; tmux show-environment -g")).output
    assert {line.split("=")[0] for line in found.split("\n") if "=" in line} <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_"),
        *("TMUX", "TMUX_PANE", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION"),
    }


async def test_a_person_attaches_leaves_and_comes_back(served: Daemon, runner: Runner) -> None:
    opened = await runner.open_terminal(name="shared")
    attach = [sys.executable, "-m", "wicketgate", "term", "attach", "--socket", str(served.socket), opened.id]
    command = ["/usr/bin/env", "TERM=xterm-256color", *attach]

    def person() -> None:
        with Pty(command, rows=30, columns=90) as pty:
            pty.wait_for(r"\$ ")
            pty.type("echo from-a-$((1+1))-person\r")
            pty.wait_for("from-a-2-person")
            pty.type("until [ \"$(stty size)\" = '30 90' ]; do sleep 0.05; done; echo rows-$((3*10))\r")
            pty.wait_for("rows-30")
            pty.resize(25, 70)
            os.kill(pty.pid, signal.SIGWINCH)
            pty.type("until [ \"$(stty size)\" = '25 70' ]; do sleep 0.05; done; echo rows-$((5*5))\r")
            pty.wait_for("rows-25")
            pty.type("(sleep 0.5; echo still-$((2+2))-here) &\r")
            pty.type("\x1d")
            assert pty.end() == 0
        with Pty(command, rows=30, columns=90) as pty:
            pty.wait_for("still-4-here")
            os.kill(pty.pid, signal.SIGKILL)  # a connection that breaks leaves the terminal alone
            assert pty.end() == -signal.SIGKILL

    await asyncio.to_thread(person)
    assert any("from-a-2-person" in line for line in (await runner.read(opened.id, scrollback=True)).lines)
    async with asyncio.timeout(PATIENCE):
        while (await runner.show_terminal(opened.id)).attached_clients:
            await asyncio.sleep(0.02)
    await runner.close_terminal(opened.id)


async def test_what_is_typed_in_the_moment_of_leaving_is_not_lost(served: Daemon, runner: Runner) -> None:
    """The end of a terminal takes its unread input away (tty_ioctl(4), hangup): it must have been read before."""
    opened = await runner.open_terminal()
    attach = [sys.executable, "-m", "wicketgate", "term", "attach", "--socket", str(served.socket), opened.id]
    rounds = 10

    def person(number: int) -> None:
        with Pty(["/usr/bin/env", "TERM=xterm-256color", *attach]) as pty:
            pty.wait_for(r"\$ ")
            pty.type(f"echo {number} >>/tmp/typed\r\x1d")
            assert pty.end() == 0

    for number in range(rounds):
        await asyncio.to_thread(person, number)
    found = await asyncio.wait_for(_until_idle(runner, opened.id), 20)
    assert found == "".join(f"{number}\n" for number in range(rounds))
    await runner.close_terminal(opened.id)


def has_stopped(served: Daemon, wanted: str) -> bool:
    assert served.process is not None
    found = (pid for pid in descendants(served.process.pid) if name(pid) == wanted)
    with contextlib.suppress(FileNotFoundError):
        return any(status(pid)["State"].startswith("T") for pid in found)
    return False


async def test_a_person_who_leaves_a_terminal_that_does_not_listen(served: Daemon, runner: Runner) -> None:
    """tmux is the payload's to stop: leaving takes its time then, but it ends, and so does the client."""
    opened = await runner.open_terminal()
    attached = runner.attach(opened.id, columns=80, rows=24, term="xterm-256color")
    async with asyncio.timeout(PATIENCE), attached as peer:
        assert (await peer.receive()).data
        await peer.send_bytes(b"pkill -STOP tmux\r")
        await asyncio.to_thread(until, lambda: has_stopped(served, "tmux: server"))
    await runner.close_terminal(opened.id)


async def test_after_a_restart_of_the_runner_there_are_no_terminals() -> None:
    with daemon() as made:
        async with made.client() as runner:
            opened = await runner.open_terminal()
        await asyncio.to_thread(made.stop)
        await asyncio.to_thread(made.start)
        async with made.client() as runner:
            assert await runner.terminals() == []
            with pytest.raises(RunnerError, match="unknown_id"):
                await runner.read(opened.id)


async def test_a_terminal_in_a_workspace(served: Daemon, runner: Runner) -> None:
    place = served.workspace("term-work")
    opened = await runner.open_terminal(authority=Authority(workspace=str(place)))
    assert (await runner.run_in_terminal(opened.id, "pwd; echo x > made")).output == f"{place}\n"
    await runner.close_terminal(opened.id)
    assert (place / "made").read_text() == "x\n"


def kill_server(served: Daemon, opened: threading.Event) -> None:
    """Kill the first tmux server that takes connections, unless the terminal is open before."""
    assert served.process is not None
    while not opened.is_set():
        for pid in descendants(served.process.pid):
            with contextlib.suppress(OSError):
                if name(pid).startswith("tmux: server") and is_listening(Path(f"/proc/{pid}/net/unix").read_text()):
                    os.kill(pid, signal.SIGKILL)
                    return


async def test_a_server_that_is_lost_while_it_is_opened_is_replaced() -> None:
    with daemon() as served:
        async with served.client() as runner:
            for _ in range(20):  # the kill may come too late
                opened = threading.Event()
                killing = asyncio.create_task(asyncio.to_thread(kill_server, served, opened))
                terminal = await runner.open_terminal()
                opened.set()
                await killing
                if "another is tried" in served.log:
                    break
                await runner.close_terminal(terminal.id)
            assert "A terminal was lost while it was opened" in served.log
            assert (await runner.run_in_terminal(terminal.id, "echo $((2 + 2))")).output == "4\n"
            assert [one.id for one in await runner.terminals() if one.state == "open"] == [terminal.id]
