"""Wait for a sandbox: pass signals on, keep the time limit, tell honestly how it ended.

A signal from the terminal reaches the payload directly, because it is in the caller's foreground process group, so only
signals that somebody sent to this process are passed on. Nothing else happens here: no output is touched.
"""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from sandbox.launch import Launched

FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
WAITED = FORWARDED | {signal.SIGCHLD}
BY_SOMEBODY = frozenset({0, -1, -6})  # SI_USER, SI_QUEUE, SI_TKILL: not the terminal's (sigaction(2))
GRACE = 0.5  # seconds between the polite and the final signal of a timeout
TIMED_OUT, FAILED = 124, 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a sandbox ended: the exit code to pass on, and whether the command ever started."""

    code: int
    started: bool
    timed_out: bool = False
    broker_gone: bool = False


def block_signals() -> None:
    """Hold back what `supervise` will wait for. Call it before anything is started, so that nothing is missed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)


def supervise(launched: Launched, *, timeout: float | None = None, broker: int | None = None) -> Ending:
    """Wait until the sandbox has ended. `timeout` in seconds; `broker` is a child whose end ends the sandbox."""
    deadline = None if timeout is None else time.monotonic() + timeout
    timed_out = broker_gone = False
    while True:
        status = _reap(launched.pid)
        if status is not None:
            return _ending(launched, status, timed_out=timed_out, broker_gone=broker_gone)
        if broker is not None and not broker_gone and _has_ended(broker):
            broker_gone = True
            os.kill(launched.pid, signal.SIGKILL)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if remaining == 0.0:
            signal_payload(launched.pid, signal.SIGKILL if timed_out else signal.SIGTERM)
            if timed_out:
                os.kill(launched.pid, signal.SIGKILL)
            timed_out, deadline = True, time.monotonic() + GRACE
            continue
        received = signal.sigwaitinfo(WAITED) if remaining is None else signal.sigtimedwait(WAITED, remaining)
        if received is not None and received.si_signo in FORWARDED and received.si_code in BY_SOMEBODY:
            signal_payload(launched.pid, signal.Signals(received.si_signo))


def signal_payload(bwrap: int, number: signal.Signals) -> None:
    """Send a signal to the command itself: the child of the sandbox's process 1, which is the child of `bwrap`."""
    init = _children(bwrap)
    command = _children(init[0]) if init else []
    # Before the command exists, only ending everything is an honest answer to a signal that would end it.
    for pid in command[:1] or [bwrap]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number if command else signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _reap(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _has_ended(pid: int) -> bool:
    # WNOWAIT: whoever started the broker reaps it.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ending(launched: Launched, status: int, *, timed_out: bool, broker_gone: bool) -> Ending:
    started = _was_started(launched.status_fd) or status < 0
    code = 128 - status if status < 0 else status
    if timed_out:
        code = TIMED_OUT
    elif broker_gone or not started:
        code = FAILED
    return Ending(code=code, started=started, timed_out=timed_out, broker_gone=broker_gone)


def _was_started(status_fd: int) -> bool:
    """Whether bubblewrap reported an exit code, which it does only for a command that was really executed."""
    with os.fdopen(status_fd, "rb") as report:
        documents = report.read(4096).splitlines()
    return any("exit-code" in json.loads(document) for document in documents if document.strip())
