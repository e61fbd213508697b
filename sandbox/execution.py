"""What a forked child does until it executes a program. The only module that executes one, and so starts a payload.

`become_bwrap`: the child is process 1 of a pid namespace of its own: the kernel ends all that it ever forked when it
ends, and ends it when the thread that started it ends. There is no moment at which a `kill -9` of one of our processes
leaves another.
`join`: a command joins the namespaces of a running sandbox and gives up there whatever bubblewrap gave up.
`go_on_as_interpreter`: this program itself, with nothing loaded.

It loads no library: the process that forks for a runner has none.
"""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from netns import joining, kernel, mounts
from sandbox.births import FIRST_OTHER, Birth, Entry

NAMESPACES: Final = {
    "user": os.CLONE_NEWUSER,
    "mnt": os.CLONE_NEWNS,
    "pid": os.CLONE_NEWPID,
    "net": os.CLONE_NEWNET,
    "ipc": os.CLONE_NEWIPC,
    "uts": os.CLONE_NEWUTS,
    "cgroup": os.CLONE_NEWCGROUP,
}
ENTER_DIRECTORY: Final = "enter the directory"  # its name, which may be anything, has no place in a report
NEVER_BY_OTHERS: Final = 0o022  # the payload's umask takes at least this away, whatever a server was started with
# Executed in between where the program may be the payload's own: an interpreter line `#!/proc/self/exe` then names
# this read-only program, and not the one that we are (the attack of CVE-2019-5736).
_BETWEEN: Final = ("/usr/bin/env", "--")
_OURS: Final = ("/usr/", "/bin/")


def become_bwrap(hear_birth: Callable[[], Birth], *, parent: int, announce: Callable[[], None] | None) -> NoReturn:
    """In the child. `parent`: a pidfd of the process whose child it is.

    `announce` is called before anything is executed, and stops the launch by raising; `hear_birth` when all is done
    that is the same for every sandbox.
    """
    try:
        kernel.die_with_parent()
        if joining.has_ended(parent):
            os._exit(125)  # the parent died before the line above took effect
        if announce is not None:
            announce()
        # bubblewrap looks its child up in /proc by the number that it has in this new pid namespace.
        mounts.enter_private_mounts()
        mounts.mount_processes()
        birth = hear_birth()
        if birth.network >= 0:
            os.setns(birth.network, os.CLONE_NEWNET)
        bwrap = _take_places(birth)
        kernel.inherit_only(set(birth.descriptors))
        _limit(birth.rlimits)
        os.umask(os.umask(NEVER_BY_OTHERS) | NEVER_BY_OTHERS)
        os.chdir("/")  # the caller's directory may be one that the serving user cannot read
        for number in birth.reset:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(bwrap, birth.argv, {})  # noqa: S606  the point of this module
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        with contextlib.suppress(OSError):
            os.write(2, f"wicketgate: bubblewrap could not be started: {error}\n".encode())
    os._exit(125)


def _take_places(birth: Birth) -> int:
    """Give each descriptor the number that it has for bubblewrap; where bubblewrap itself is then."""
    beyond = max((FIRST_OTHER, *birth.descriptors)) + 1
    bwrap = fcntl.fcntl(birth.bwrap_fd, fcntl.F_DUPFD_CLOEXEC, beyond)
    aside = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, beyond) for number, fd in birth.descriptors.items()}
    for number, fd in aside.items():
        os.dup2(fd, number)
    return bwrap


def join(entry: Entry, reset: tuple[int, ...], report: int) -> NoReturn:
    """In between: outside of the sandbox's pid namespace, so unseen there. Its child is born inside, as our sibling."""
    step = "prepare"
    try:
        pidfd = _open_process(entry.init, entry.parent)
        for path in entry.groups:
            Path(path).write_text(str(os.getpid()))
        if entry.oom_score_adj:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else the file belongs to root (proc(5)); nothing sees us yet
            Path("/proc/self/oom_score_adj").write_text(str(entry.oom_score_adj))
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # nobody in there may read what this interpreter has in memory
        for number, fd in entry.stdio.items():
            os.dup2(fd, number)
        kernel.inherit_only(set())
        flags = _different_namespaces(entry.init)
        step = "join the namespaces"
        os.setns(pidfd, flags)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # a change of credentials sets it anew
        step = "fork"
        pid = joining.clone_sibling()
        if pid == 0:
            _become_command(entry, reset, report)
        os.write(report, f"pid {pid}\n".encode())
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        os.write(report, f"failed {code} {step}\n".encode())
    os._exit(125)


def _open_process(pid: int, parent: int) -> int:
    """A pidfd of a process that is still its parent's child: its number was never free, so it was no other's."""
    pidfd = os.pidfd_open(pid)
    if str(pid) not in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return pidfd


def _different_namespaces(init: int) -> int:
    """Which namespaces are the sandbox's own; joining one's own user namespace again is an error (setns(2))."""
    return sum(
        flag
        for name, flag in NAMESPACES.items()
        if os.readlink(f"/proc/{init}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115  no paths
    )


def _become_command(entry: Entry, reset: tuple[int, ...], report: int) -> NoReturn:
    step = "confine"
    try:
        os.setsid()
        if entry.controlling:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir("/")
        step = ENTER_DIRECTORY
        os.chdir(entry.directory)
        step = "confine"
        _limit(entry.rlimits)
        os.umask(os.umask(NEVER_BY_OTHERS) | NEVER_BY_OTHERS)
        for number in reset:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        argv = entry.argv if entry.argv[0].startswith(_OURS) else (*_BETWEEN, *entry.argv)
        environment = {**dict(entry.environment), "PWD": entry.directory}
        step = "execute"
        joining.filter_system_calls(entry.seccomp)
        os.execve(argv[0], argv, environment)  # noqa: S606  the point of this module
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        os.write(report, f"failed {code} {step}\n".encode())
    os._exit(125)


def _limit(rlimits: tuple[tuple[int, int, int], ...]) -> None:
    # No core: it would be written by the host's handler, which sees the whole memory of the payload.
    for limit, soft, hard in ((resource.RLIMIT_CORE, 0, 0), *rlimits):
        most = resource.getrlimit(limit)[1]
        bound = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(limit, (min(soft, bound), bound))


def go_on_as_interpreter(code: str, *arguments: str, keep: set[int]) -> None:
    """Execute this very interpreter anew with a program of ours. Returns where that cannot be done."""
    kernel.inherit_only(keep)
    words = [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, *arguments]
    with contextlib.suppress(OSError):
        os.execve(sys.executable, words, {})  # noqa: S606  the point of this module
