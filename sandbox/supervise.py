"""Wait for a sandbox: pass signals on, keep the time limit, tell honestly how it ended.

A signal from the terminal reaches the payload directly, because it is in the caller's foreground process group, so only
signals that were sent to this process alone are passed on. Nothing else happens here: no output is touched.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping

import msgspec

from netns import kernel
from sandbox.errors import BY_SIGNAL, Interrupted
from sandbox.launch import Launched

FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
WAITED = FORWARDED | {signal.SIGCHLD}
BY_SOMEBODY = frozenset({0, -1, -6})  # SI_USER, SI_QUEUE, SI_TKILL: not the terminal's (sigaction(2))
GRACE = 0.5  # seconds between the polite and the final signal of a timeout; and for a command to come into being
LONGEST_WAIT = 86_400_000.0  # milliseconds; poll(2) takes 24 days at most
CHUNK = 16384  # bytes of a file below /proc that are read at once
LOOK_AGAIN = 5.0  # milliseconds: nothing tells us when the command has been forked
TIMED_OUT, FAILED = 124, 125


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox ended: the exit code to pass on, and whether the command ever started.

    `broker_gone`, `keeper_gone`: that one died first, and the command with it. `lost`: somebody killed the
    sandbox's own process.
    """

    code: int
    started: bool
    timed_out: bool = False
    broker_gone: bool = False
    keeper_gone: bool = False
    lost: bool = False


class _Watch(msgspec.Struct, kw_only=True):
    """What happened so far."""

    launched: Launched
    broker: int | None
    keeper: int | None
    deadline: float | None
    timed_out: bool = False
    broker_gone: bool = False
    keeper_gone: bool = False
    early: tuple[int, float] | None = None  # a signal for which no command was found, and until when to look for one
    interrupted: int = 0  # such a signal for which none came into being
    sent: int = 0  # the last signal that was given to the command
    ignored: frozenset[int] = msgspec.field(default_factory=frozenset)

    def end_all(self) -> None:
        """Kill process 1 of the sandbox's pid namespace; the kernel kills everything in it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.launched.pid, signal.SIGKILL)


def block_signals() -> None:
    """Hold back what `supervise` will wait for. Call it before anything is started, so that nothing is missed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by the caller, it would take the children's status away
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)


def check_interrupted() -> None:
    """Raise Interrupted if a signal arrived since `block_signals`. Call it right before the launch."""
    pending = signal.sigpending() & FORWARDED - _ignored()
    if pending:
        raise Interrupted(min(pending))


def supervise(
    launched: Launched,
    *,
    timeout: float | None = None,
    broker: int | None = None,
    keeper: int | None = None,
    drains: Mapping[int, Callable[[], bool]] | None = None,
) -> Ending:
    """Wait until the sandbox has ended. `timeout` in seconds; `broker` and `keeper` are children whose end ends
    the sandbox.

    `drains`: a descriptor that the sandbox writes to and what reads from it, False at its end. (No threads: a process
    that has unshared its pid namespace for its children cannot start any, unshare(2).)
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    watch = _Watch(launched=launched, broker=broker, keeper=keeper, deadline=deadline, ignored=_ignored())
    open_drains = dict(drains or {})
    signals = kernel.signal_descriptor(WAITED)
    poll = select.poll()
    for fd in (signals, *open_drains):
        poll.register(fd, select.POLLIN)
    try:
        while (status := _reap(launched.pid)) is None:
            _look_after_others(watch)
            waits = (_keep_time(watch), _look_for_command(watch))
            for fd, _events in poll.poll(min((wait for wait in waits if wait is not None), default=None)):
                if fd == signals:
                    for number, code in kernel.read_signals(signals):
                        if number in FORWARDED:
                            _pass_on(watch, number, for_us_only=code in BY_SOMEBODY or _is_hangup(number))
                elif not open_drains[fd]():
                    poll.unregister(fd)
                    del open_drains[fd]
    finally:
        os.close(signals)
    for drain in open_drains.values():  # all writers are gone: what is left in the pipes is the end
        while drain():
            pass
    return _ending(watch, status)


def _ignored() -> frozenset[int]:
    return frozenset(number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN)


def _look_after_others(watch: _Watch) -> None:
    if watch.broker is not None and not watch.broker_gone and _has_ended(watch.broker):
        watch.broker_gone = True
        watch.end_all()
    if watch.keeper is not None and not watch.keeper_gone and _has_ended(watch.keeper):
        watch.keeper_gone = True
        watch.end_all()


def _keep_time(watch: _Watch) -> float | None:
    """Milliseconds to wait. At the limit the command is asked to end, and after the grace everything is ended."""
    if watch.deadline is None:
        return None
    remaining = watch.deadline - time.monotonic()
    if remaining > 0:
        return min(remaining * 1000, LONGEST_WAIT)
    if watch.timed_out or not signal_command(watch.launched.pid, signal.SIGTERM):
        watch.end_all()
    watch.timed_out, watch.deadline = True, time.monotonic() + GRACE
    return GRACE * 1000


def _pass_on(watch: _Watch, number: int, *, for_us_only: bool) -> None:
    if find_command(watch.launched.pid) is not None:
        if for_us_only:
            signal_command(watch.launched.pid, number)
        watch.sent = number
    elif number not in watch.ignored and watch.early is None:
        # It has not been forked yet, or it has ended already and its exit code is on the way to us.
        watch.early = (number, time.monotonic() + GRACE)


def _look_for_command(watch: _Watch) -> float | None:
    """Give the command the signal that came too early for it; milliseconds until it is worth looking again.

    Where none comes into being, only ending everything is an honest answer to a signal that would have ended it.
    """
    if watch.early is None:
        return None
    number, until = watch.early
    if not signal_command(watch.launched.pid, number):
        if time.monotonic() < until:
            return LOOK_AGAIN
        watch.interrupted = number
        watch.end_all()
    watch.sent = number
    watch.early = None
    return None


def _is_hangup(number: int) -> bool:
    """Whether the kernel told only us that the terminal has gone: it tells the session's leader alone at first."""
    return number == signal.SIGHUP and os.getsid(0) == os.getpid()


def find_command(bwrap: int) -> int | None:
    """The pid of the command itself: the first child of the sandbox's process 1, which is the child of `bwrap`."""
    init = children(bwrap)
    command = children(init[0]) if init else []
    return command[0] if command else None


def signal_command(bwrap: int, number: int) -> bool:
    """Send a signal to the command; whether there was one."""
    command = find_command(bwrap)
    if command is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(command)
        try:
            # Asked again: from here on the number cannot have passed to another process.
            if find_command(bwrap) == command:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
    return True


def children(pid: int) -> list[int]:
    """The children of a process's first thread; none where it is gone (proc_pid_children(5))."""
    return [int(word) for word in read_process(f"{pid}/task/{pid}/children").split()]


def read_process(name: str) -> bytes:
    """A file below /proc; empty where the process is gone. With as few system calls as can be: a start waits for it."""
    content = b""
    try:
        file = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(file, CHUNK):
                content += piece
        finally:
            os.close(file)
    except OSError:
        return b""
    return content


def _reap(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _has_ended(pid: int) -> bool:
    # WNOWAIT: whoever started it reaps it.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ending(watch: _Watch, status: int) -> Ending:
    reported = _was_started(watch.launched.status_fd)
    if not reported and watch.sent and status == BY_SIGNAL + watch.sent:
        watch.interrupted = watch.sent  # it was there already, but was bubblewrap's still, not yet the command's
    started = reported or (status < 0 and not watch.interrupted)
    others_gone = watch.broker_gone or watch.keeper_gone
    # bubblewrap reports the command's signal as an exit code; a signal of its own was ours or a stranger's.
    lost = status < 0 and not (watch.timed_out or others_gone or watch.interrupted)
    code = status
    if watch.timed_out:
        code = TIMED_OUT
    elif watch.interrupted:
        code = BY_SIGNAL + watch.interrupted
    elif others_gone or lost or not started:
        code = FAILED
    return Ending(
        code=code,
        started=started,
        timed_out=watch.timed_out,
        broker_gone=watch.broker_gone,
        keeper_gone=watch.keeper_gone,
        lost=lost,
    )


def _was_started(status_fd: int) -> bool:
    """Whether bubblewrap reported an exit code, which it does only for a command that was really executed."""
    with os.fdopen(status_fd, "rb") as report:
        return b'"exit-code"' in report.read(4096)
