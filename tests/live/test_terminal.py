"""A command on a terminal behaves as without a sandbox: keys, job control, size; and it cannot type for its caller."""

import os
import shlex

import pytest

from tests.live.ptys import Pty
from tests.live.runs import FRONT, children, find, name, taking_signals, until

pytestmark = pytest.mark.live
RUN = shlex.join(FRONT)
# Not a shell: dash starts a command by vfork, and waits uninterruptibly where Ctrl-Z stops the child before its exec.
READ_AND_END = 'import sys; print("up", flush=True); word = sys.stdin.readline(); print("read-" + word); sys.exit(7)'
# TIOCSTI, TIOCLINUX, and both with bits above the 32 that the kernel looks at; then the foreground's own echo.
TYPE_FOR_CALLER = """
import ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
number = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
for request in (0x5412, 0x541C):
    for high in (0, 1 << 32, 0xFFFFFFFF << 32, 1 << 63):
        for fd in (0, os.open("/dev/tty", os.O_RDWR)):
            done = libc.syscall(ctypes.c_long(number), ctypes.c_long(fd), ctypes.c_ulong(request | high), b"!")
            assert done == -1, (hex(request), hex(high))
            assert ctypes.get_errno() == 1, (hex(request), ctypes.get_errno())
print("all refused")
"""


def on_terminal(*words: str, **size: int) -> Pty:
    return Pty([*FRONT, *words], **size)


def shell() -> Pty:
    terminal = Pty(["/bin/bash", "--norc", "-i"])
    terminal.wait_for("ready> ")
    return terminal


@pytest.mark.parametrize("words", [(), ("--allow", "origin.example")], ids=["alone", "with a cable"])
def test_control_c_ends_the_command(words: tuple[str, ...]) -> None:
    with on_terminal(*words, "--", "sh", "-c", "echo up; exec sleep 60") as terminal:
        terminal.wait_for("up\r\n")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert b"Traceback" not in terminal.shown
        if words:
            assert b"0 allowed, 0 denied" in terminal.shown, "the broker did not survive Ctrl-C"


def test_a_key_reaches_the_command_once_and_its_exit_code_counts() -> None:
    """A signal that was delivered twice would be seen in the place of the next."""
    with on_terminal("--", *taking_signals(4)) as terminal:
        terminal.wait_for("up\r\n")
        for key, name in (("\x03", "INT"), ("\x1c", "QUIT"), ("\x03", "INT"), ("\x1c", "QUIT")):
            terminal.type(key)
            assert terminal.wait_for("got SIG(\\w+)\r\n")[1].decode() == name
        assert terminal.end() == 42


def test_control_backslash_ends_the_command_without_a_core() -> None:
    with on_terminal("--", "sh", "-c", "echo up; exec sleep 60") as terminal:
        terminal.wait_for("up\r\n")
        terminal.type("\x1c")
        assert terminal.end() == 131


def test_stop_and_continue_from_the_callers_shell() -> None:
    with shell() as terminal:
        terminal.type(f"{RUN} -- /usr/bin/python3 -I -c {shlex.quote(READ_AND_END)}\n")
        terminal.wait_for("up\r\n")
        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        front = until(lambda: next((pid for pid in children(terminal.pid) if name(pid).startswith("python")), 0))
        command = until(lambda: find(front, "python3"))
        until(lambda: {state(front), state(command)} == {"T"})
        terminal.type("jobs\n")
        terminal.wait_for("Stopped")
        terminal.type("fg\n")
        in_front(terminal, command)
        terminal.type("word\n")
        terminal.wait_for("read-word\r\n")
        terminal.wait_for("ready> ")
        terminal.type("echo code-$?\n")
        terminal.wait_for("code-7\r\n")


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def in_front(terminal: Pty, pid: int) -> None:
    """Wait until a shell has given the terminal to the process and continued it: before, keys are the shell's."""
    until(lambda: terminal.foreground() == os.getpgid(pid) and state(pid) != "T")


def test_a_background_run_that_reads_the_terminal_is_stopped() -> None:
    with shell() as terminal:
        terminal.type(f"{RUN} -- sh -c 'read word; echo got-$word' &\n")
        terminal.wait_for("ready> ")
        terminal.type("wait %1; jobs\n")
        terminal.wait_for("Stopped")
        terminal.type("fg\n")
        terminal.wait_for("read word")
        terminal.type("hello\n")
        terminal.wait_for("got-hello")


def test_size_and_its_changes_reach_the_command() -> None:
    script = "trap 'stty size; exit 5' WINCH; stty size; while :; do sleep 0.05; done"
    with on_terminal("--", "bash", "-c", script, rows=33, columns=101) as terminal:
        terminal.wait_for("33 101\r\n")
        terminal.resize(44, 132)
        terminal.wait_for("44 132\r\n")
        assert terminal.end() == 5


def test_standard_streams_are_the_terminal() -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && : >/dev/tty && echo all; tty"
    with on_terminal("--", "sh", "-c", script) as terminal:
        terminal.wait_for("all\r\n")
        assert terminal.end() == 0


def test_an_interactive_shell_inside_has_job_control() -> None:
    with on_terminal("--", "bash", "--norc", "-i") as terminal:
        terminal.wait_for(r"\$ ")
        assert b"no job control" not in terminal.shown
        terminal.type("sleep 60\n")
        sleeping = until(lambda: find(terminal.pid, "sleep"))
        in_front(terminal, sleeping)
        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        terminal.type("fg\n")
        in_front(terminal, sleeping)
        terminal.type("\x03")
        terminal.wait_for(r"\^C[^$]*\$ ")  # a key that is typed before would be flushed with the others (termios(3))
        terminal.type("exit 6\n")
        assert terminal.end() == 6


@pytest.mark.parametrize(
    "script",
    ["stty raw -echo; kill -9 $$", "stty raw -echo; exit 0", "set -m; stty -echo; (exec sleep 60); exit 0"],
    ids=["killed", "ended", "killed in a group of its own"],
)
def test_the_terminal_is_given_back_as_it_was(script: str) -> None:
    run = f'{RUN} --timeout 2 -- bash -c "$0"'
    outer = f'before=$(stty -g); {run}; after=$(stty -g); read word; echo "$word:$before:$after"'
    with Pty(["/bin/sh", "-c", outer, script]) as terminal:
        terminal.type("word\n")
        found = terminal.wait_for(r"word:([0-9a-f:]+)\r\n")
        settings = found[1].decode().split(":")
        assert settings[: len(settings) // 2] == settings[len(settings) // 2 :]
        terminal.end()


@pytest.mark.parametrize("end", ["", "import os; os.kill(os.getpid(), 9)"])
def test_the_terminal_can_be_opened_again(end: str) -> None:
    """Exclusive mode lets nobody but root open it, /dev/tty neither (ioctl_tty(2), TIOCEXCL)."""
    take = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCEXCL); print('taken', flush=True); {end}"
    look = "import fcntl; print('exclusive', *fcntl.ioctl(0, 0x80045440, bytes(4)))"
    outer = f'{RUN} -- /usr/bin/python3 -c "$0"; /usr/bin/python3 -c "$1"'
    with Pty(["/bin/sh", "-c", outer, take, look]) as terminal:
        terminal.wait_for("taken")
        terminal.wait_for("exclusive 0 0 0 0")
        assert terminal.end() == 0


def test_the_command_cannot_type_for_its_caller() -> None:
    with on_terminal("--", "/usr/bin/python3", "-c", TYPE_FOR_CALLER) as terminal:
        terminal.wait_for("all refused")
        assert terminal.end() == 0


def test_the_callers_terminal_closes_and_nothing_is_left() -> None:
    terminal = on_terminal("--", "sh", "-c", "echo up; exec sleep 60")
    terminal.wait_for("up\r\n")
    sleeping = until(lambda: find(terminal.pid, "sleep"))
    os.close(terminal.fd)
    status = until(lambda: [status for pid, status in [os.waitpid(terminal.pid, os.WNOHANG)] if pid])[0]
    assert os.waitstatus_to_exitcode(status) == 128 + 1
    assert not os.path.exists(f"/proc/{sleeping}")
