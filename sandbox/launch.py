"""Start bubblewrap with a plan. The only module that starts a sandboxed process.

The child is process 1 of a pid namespace of its own: the kernel ends all that it ever forked when it ends, and ends it
when the thread that started it ends. There is no moment at which a `kill -9` of one of our processes leaves another.
"""

import contextlib
import os
import resource
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from netns import kernel
from sandbox.argv import arguments
from sandbox.plan import Plan

# Ignored by Python itself, not by whoever called it.
IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
NEVER_BY_OTHERS = 0o022  # the payload's umask takes at least this away, whatever a server was started with


@dataclass(slots=True, kw_only=True)
class Launched:
    """A started sandbox: bubblewrap's pid, and the pipe on which it reports (JSON documents, until it ends)."""

    pid: int
    status_fd: int


@dataclass(slots=True, kw_only=True)
class _Child:
    """All that the child needs, made before the fork, so that nothing can fail for want of it afterwards."""

    argv: list[str]
    bwrap_fd: int
    parent: int  # pidfd
    keep: set[int] = field(default_factory=set)
    reset: tuple[int, ...] = ()  # signals that get their default action back
    rlimits: tuple[tuple[int, int], ...] = ()
    stdio: Mapping[int, int] = field(default_factory=dict)


def launch(plan: Plan, *, bwrap_fd: int, seccomp: bytes, stdio: Mapping[int, int] | None = None) -> Launched:
    """Start the plan.

    The calling thread must stay alive, be in the sandbox's network namespace (if brokered) and have unshared
    CLONE_NEWPID since its last child. `stdio` maps 0, 1 and 2 to descriptors of the caller; what it does not name is
    inherited.
    """
    with contextlib.ExitStack() as files:
        child, status_fd = _prepare(plan, bwrap_fd, seccomp, files)
        child.stdio = stdio or {}
        pid = os.fork()
        if pid == 0:
            _become_bwrap(child)
    return Launched(pid=pid, status_fd=status_fd)


def _prepare(plan: Plan, bwrap_fd: int, seccomp: bytes, files: contextlib.ExitStack) -> tuple[_Child, int]:
    keep: set[int] = set()

    def supply(content: bytes) -> int:
        fd = os.memfd_create("wicketgate", os.MFD_CLOEXEC)
        files.callback(os.close, fd)
        keep.add(fd)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    parent = os.pidfd_open(os.getpid())
    files.callback(os.close, parent)
    status_fd, report_fd = os.pipe2(os.O_CLOEXEC)
    files.callback(os.close, report_fd)
    keep.add(report_fd)
    words = arguments(plan, supply, seccomp=supply(seccomp))
    # By descriptor: neither the variables nor the mounts show in /proc/PID/cmdline.
    packed = supply(b"".join(os.fsencode(word) + b"\0" for word in words))
    argv = ["bwrap", "--json-status-fd", str(report_fd), "--args", str(packed), "--", *plan.argv]
    child = _Child(
        argv=argv, bwrap_fd=bwrap_fd, parent=parent, keep=keep, reset=_signals_to_reset(), rlimits=plan.rlimits
    )
    return child, status_fd


def _signals_to_reset() -> tuple[int, ...]:
    """All but those that the caller had ignored: `nohup` and a shell's background jobs count on it (execve(2))."""
    never = {signal.SIGKILL, signal.SIGSTOP}
    return tuple(
        number
        for number in signal.Signals
        if number not in never and (number in IGNORED_BY_PYTHON or signal.getsignal(number) is not signal.SIG_IGN)
    )


def _become_bwrap(child: _Child) -> NoReturn:
    try:
        kernel.die_with_parent()
        if select.select([child.parent], [], [], 0)[0]:
            os._exit(125)  # the parent died before the line above took effect
        for number, fd in child.stdio.items():
            os.dup2(fd, number)
        _inherit_only(child.keep)
        _limit(child.rlimits)
        os.umask(os.umask(NEVER_BY_OTHERS) | NEVER_BY_OTHERS)
        os.chdir("/")  # the caller's directory may be one that the serving user cannot read
        for number in child.reset:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(child.bwrap_fd, child.argv, {})  # noqa: S606  the point of this module
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        with contextlib.suppress(OSError):
            os.write(2, f"wicketgate: bubblewrap could not be started: {error}\n".encode())
    os._exit(125)


def _inherit_only(keep: set[int]) -> None:
    for number in (0, 1, 2):
        os.set_inheritable(number, True)
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  after a fork: nothing fancy
        if fd > 2:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.set_inheritable(fd, fd in keep)


def _limit(rlimits: tuple[tuple[int, int], ...]) -> None:
    # No core: it would be written by the host's handler, which sees the whole memory of the payload.
    for limit, value in ((resource.RLIMIT_CORE, 0), *rlimits):
        hard = resource.getrlimit(limit)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (bound, bound))
