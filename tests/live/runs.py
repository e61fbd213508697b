"""Start `wicketgate run` for real and look at its processes from outside."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FRONT = (sys.executable, "-m", "wicketgate", "run")
PR_SET_CHILD_SUBREAPER = 36
KEEPER = "wicketgate-keep"  # what the process that cleans up after a kill is called in /proc/PID/comm
STARTER = "wicketgate-fork"  # … and the one that forks for a runner
NEXT = "wicketgate-next"  # … and the one that waits for a runner's next sandbox
# A background job of a shell, or one under nohup, is started with these ignored, which a run would honour (execve(2)).
for _number, _action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _action)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
PROMPTLY = 8.0  # seconds: what ends at once, within two on a machine at rest; what survives a kill lives for ever
PATIENCE = 60.0  # seconds until a condition that must come true is given up; generous, the machine may be busy
# Takes so many signals one by one, says which, and ends with 42. Not a shell: bash drops a SIGINT that comes in the
# moment in which its own child ends by itself.
TAKE_SIGNALS = """
import signal, sys
signals = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
open("/proc/self/comm", "w").write("taker")
print("up", flush=True)
for _ in range(int(sys.argv[1])):
    print("got", signal.Signals(signal.sigwait(signals)).name, flush=True)
sys.exit(42)
"""


def taking_signals(number: int) -> tuple[str, ...]:
    """A command that is called `taker` once it is ready, and says `up`, `got SIGINT`, …"""
    return "/usr/bin/python3", "-I", "-c", TAKE_SIGNALS, str(number)


def wicketgate(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run to the end: `wicketgate("--json", "--", "true")`."""
    options = {"capture_output": True, "timeout": 60, "check": False, "stdin": subprocess.DEVNULL} | options
    if "input" in options:
        del options["stdin"]
    return subprocess.run([*FRONT, *words], **options)  # type: ignore[return-value]  # noqa: PLW1510  `check` is there


def inside(script: str, *words: str, **options: Any) -> str:
    """The output of a shell script in a sandbox; the run must succeed."""
    done = wicketgate(*words, "--", "sh", "-c", script, **options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def start(*words: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a run and do not wait."""
    return subprocess.Popen([*FRONT, *words], **({"stdin": subprocess.DEVNULL} | options))  # type: ignore[return-value]


@contextmanager
def running(*words: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A started run that is killed at the end, if it lives."""
    process = start(*words, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def line(stream: IO[bytes] | None) -> str:
    """The next line that the payload wrote, as its sign that it has come so far."""
    assert stream is not None
    return stream.readline().decode().strip()


def until[T](condition: Callable[[], T | None], patience: float = PATIENCE) -> T:
    """Poll until the condition holds and return its value; fail when patience ends."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not come true within {patience} s"
        time.sleep(0.005)
    return value


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """All processes below, nearest first."""
    found = children(pid)
    for child in found:  # grows while it is walked
        found += children(child)
    return found


def status(pid: int) -> Mapping[str, str]:
    """/proc/PID/status as a mapping (proc_pid_status(5))."""
    rows = (row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, value in rows}


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def recorded(state: Path, workspace: Path) -> Path:
    """Where a state directory says which names of a workspace are held; absent where none are."""
    found = workspace.stat()
    return state / "held" / f"{found.st_dev:x}-{found.st_ino:x}.json"


def leads_session(pid: int) -> bool:
    """Whether a process is in a session of its own, as those of ours are that stay."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def find(front: int, wanted: str) -> int | None:
    """The first descendant that runs this program."""
    return next((pid for pid in descendants(front) if name(pid) == wanted), None)


@contextmanager
def adopted() -> Iterator[Callable[[], list[int]]]:
    """Have every orphan of this process's runs come to this process (PR_SET_CHILD_SUBREAPER).

    Yields a function that reaps the dead and returns who is left, so that nothing can hide by being forked twice.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    before = set(children(os.getpid()))

    def left() -> list[int]:
        alive: list[int] = []
        for pid in set(children(os.getpid())) - before:
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            if not ended:
                alive.append(pid)
        return alive

    try:
        yield left
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
