"""Start bubblewrap with a plan, and further commands in what it built. The only module that starts a payload.

`launch`: the child is process 1 of a pid namespace of its own: the kernel ends all that it ever forked when it ends,
and ends it when the thread that started it ends. There is no moment at which a `kill -9` of one of our processes leaves
another.
`enter`: a command joins the namespaces of a running sandbox and gives up there whatever bubblewrap gave up.
"""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from netns import joining, kernel, mounts
from sandbox.argv import arguments
from sandbox.plan import Plan

# Ignored by Python itself, not by whoever called it.
IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
FIRST_OTHER = 10  # descriptors below this number are what a launch's `stdio` gives the command, and nothing else
NAMESPACES = {
    "user": os.CLONE_NEWUSER,
    "mnt": os.CLONE_NEWNS,
    "pid": os.CLONE_NEWPID,
    "net": os.CLONE_NEWNET,
    "ipc": os.CLONE_NEWIPC,
    "uts": os.CLONE_NEWUTS,
    "cgroup": os.CLONE_NEWCGROUP,
}
MOST_SENT = 4096  # bytes: every socket takes them at once
NEVER_BY_OTHERS = 0o022  # the payload's umask takes at least this away, whatever a server was started with


@dataclass(slots=True, kw_only=True)
class Launched:
    """A started sandbox: bubblewrap's pid, and the pipe on which it reports (JSON documents, until it ends).

    A held one executes its command at a byte to `release_fd`. `mounting` is readable when bubblewrap has made the last
    generated file, which is near the end of its mounts, or has ended; None where it makes none.
    """

    pid: int
    status_fd: int
    release_fd: int = -1
    mounting: socket.socket | None = None

    def close(self) -> None:
        """Close what is open of it."""
        self.close_mounting()
        for fd in (self.status_fd, self.release_fd):
            if fd >= 0:
                os.close(fd)

    def close_mounting(self) -> None:
        """Nobody waits for the mounts any more."""
        if self.mounting is not None:
            self.mounting.close()
            self.mounting = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """All that a child needs, made before it is born, so that nothing can fail for want of it afterwards.

    `descriptors`: number in the child → descriptor of whoever prepared it. `network`: a namespace to join, or -1.
    `urgent`: somebody waits for it.
    """

    argv: tuple[str, ...]
    bwrap_fd: int
    descriptors: Mapping[int, int]
    network: int = -1
    reset: tuple[int, ...] = ()  # signals that get their default action back
    rlimits: tuple[tuple[int, int, int], ...] = ()
    urgent: bool = True


class Starter(Protocol):
    """Who has the children forked. They are children of the calling thread in any case, and end with it."""

    def bear(self, birth: Birth) -> int:
        """Have bubblewrap's process born as the first one of a pid namespace; its pid. Raises OSError."""

    def expect_birth(self) -> None:
        """Say that a further sandbox may come: what can be done for it ahead is done meanwhile. Never waits."""

    def expect_move(self, group: str) -> None:
        """Say that somebody is going to be moved into the group with this `cgroup.procs` soon. Never waits."""

    def join(self, entry: "Entry", reset: tuple[int, ...], report: int) -> int:
        """Have a process born that starts an entry (`join` below); its pid. Raises OSError."""

    def prepare(self, groups: tuple[str, ...]) -> "Spare | None":
        """Have a process born for one entry of a sandbox with these groups. Raises OSError. None: not by this one."""


class Spare(Protocol):
    """A process that is in a sandbox's groups already and waits for one entry."""

    def join(self, entry: "Entry", reset: tuple[int, ...], report: int) -> int:
        """Give it the entry; as for a Starter."""

    def discard(self) -> int:
        """End it, unless it was given one; its pid, which is still to be waited for, 0 where there is none."""


@dataclass(frozen=True, slots=True)
class Here:
    """This process itself. It has unshared CLONE_NEWPID since its last child, and is in the network namespace."""

    announce: Callable[[], None] | None = None

    def bear(self, birth: Birth) -> int:
        """Fork it."""
        parent = os.pidfd_open(os.getpid())
        try:
            pid = os.fork()
            if pid == 0:
                become_bwrap(lambda: birth, parent=parent, announce=self.announce)
        finally:
            os.close(parent)
        return pid

    def expect_birth(self) -> None:
        """Not here: what waits would hold all that this process has in memory."""

    def expect_move(self, group: str) -> None:
        """Nor here."""

    def join(self, entry: "Entry", reset: tuple[int, ...], report: int) -> int:
        """Fork it."""
        pid = os.fork()
        if pid == 0:
            join(entry, reset, report)
        return pid

    def prepare(self, groups: tuple[str, ...]) -> "Spare | None":
        """Nor here."""


def launch(  # noqa: PLR0913  one parameter a part
    plan: Plan,
    *,
    bwrap_fd: int,
    seccomp: bytes,
    stdio: Mapping[int, int] | None = None,
    held: bool = False,
    network: int | None = None,
    starter: Starter | None = None,
    urgent: bool = True,
) -> Launched:
    """Start the plan. `held`: stop when everything is mounted and given up, before the command.

    The calling thread must stay alive. `stdio` maps 0, 1 and 2 (and for a parked sandbox further numbers below 10) to
    descriptors of the caller; of the first three, what it does not name is inherited. `network`: a namespace for the
    sandbox, None where it gets one of its own or the starter is in it. `urgent`: as for a `Birth`.
    """
    with contextlib.ExitStack() as files, contextlib.ExitStack() as ours:
        supplied: dict[int, int] = {}

        def supply(fd: int) -> int:
            files.callback(os.close, fd)
            number = FIRST_OTHER + len(supplied)
            supplied[number] = fd
            return number

        status_fd, report_fd = os.pipe2(os.O_CLOEXEC)
        ours.callback(os.close, status_fd)
        words = ["--json-status-fd", str(supply(report_fd))]
        release_fd = -1
        if held:
            block, release_fd = _hold()
            ours.callback(os.close, release_fd)
            words = ["--block-fd", str(supply(block)), *words]
        filtered = supply(_file(seccomp))
        contents: list[bytes] = []

        def later(content: bytes) -> int:
            contents.append(content)
            return FIRST_OTHER + len(supplied) + len(contents) - 1

        inner = arguments(plan, later, seccomp=filtered)
        mounting = _supply_all(contents, supply, told=held)
        if mounting is not None:
            ours.callback(mounting.close)
        # By descriptor: neither the variables nor the mounts show in /proc/PID/cmdline.
        packed = supply(_file(b"".join(os.fsencode(word) + b"\0" for word in inner)))
        birth = Birth(
            argv=("bwrap", *words, "--args", str(packed), "--", *plan.argv),
            bwrap_fd=bwrap_fd,
            descriptors={**(stdio or {}), **supplied},
            network=-1 if network is None else network,
            reset=_signals_to_reset(),
            rlimits=plan.rlimits,
            urgent=urgent,
        )
        pid = (starter or Here()).bear(birth)
        ours.pop_all()
    return Launched(pid=pid, status_fd=status_fd, release_fd=release_fd, mounting=mounting)


def _hold() -> tuple[int, int]:
    waits, release_fd = os.pipe2(os.O_CLOEXEC)
    try:
        # Opened for both directions it is its own writer: should we be killed, it reads no end of file and stays held.
        return os.open(f"/proc/self/fd/{waits}", os.O_RDWR | os.O_CLOEXEC), release_fd
    except BaseException:
        os.close(release_fd)
        raise
    finally:
        os.close(waits)


def _supply_all(contents: Sequence[bytes], supply: Callable[[int], int], *, told: bool) -> socket.socket | None:
    """Supply generated files in their order; `told`: an end that tells when the last one has been read."""
    if not told or not contents or len(contents[-1]) > MOST_SENT:
        for content in contents:
            supply(_file(content))
        return None
    for content in contents[:-1]:
        supply(_file(content))
    near, far = _read_once(contents[-1])
    supply(far)
    return near


def _read_once(content: bytes) -> tuple[socket.socket, int]:
    """A file that is read to its end and then closed by whoever gets the descriptor, and an end that tells when."""
    near, far = socket.socketpair()
    try:
        near.setblocking(False)
        near.sendall(content)
        near.shutdown(socket.SHUT_WR)
    except BaseException:
        near.close()
        far.close()
        raise
    return near, far.detach()


def _file(content: bytes) -> int:
    fd = os.memfd_create("wicketgate", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _signals_to_reset() -> tuple[int, ...]:
    """All but those that the caller had ignored: `nohup` and a shell's background jobs count on it (execve(2))."""
    never = {signal.SIGKILL, signal.SIGSTOP}
    return tuple(
        number
        for number in signal.Signals
        if number not in never and (number in IGNORED_BY_PYTHON or signal.getsignal(number) is not signal.SIG_IGN)
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A further command of a running sandbox. `init` is the pid of the sandbox's process 1, as the caller sees it.

    `directory` is a path inside. `controlling`: descriptor 0 is a terminal, which becomes the command's own.
    `groups`: `cgroup.procs` files of the sandbox.
    """

    init: int
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    seccomp: bytes
    rlimits: tuple[tuple[int, int, int], ...]
    stdio: Mapping[int, int]
    controlling: bool = False
    groups: tuple[str, ...] = ()
    oom_score_adj: int = 0


# Executed in between where the program may be the payload's own: an interpreter line `#!/proc/self/exe` then names
# this read-only program, and not the one that we are (the attack of CVE-2019-5736).
_BETWEEN = ("/usr/bin/env", "--")
_OURS = ("/usr/", "/bin/")


def enter(entry: Entry, starter: Starter | Spare | None = None) -> int:
    """Start a command in a running sandbox; its pid, a child of the caller. Raises OSError naming the step that failed.

    The caller needs CAP_SYS_ADMIN over the sandbox's user namespace. The command is in the sandbox's pid namespace, so
    it ends with the sandbox.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        between = (starter or Here()).join(entry, _signals_to_reset(), writer)
        os.close(writer)
        writer = -1
        with os.fdopen(os.dup(reader), "rb") as report:
            told = report.read(4096)  # until the command was executed, or one of the two failed
        os.waitpid(between, 0)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    lines = dict(line.split(" ", 1) for line in told.decode().splitlines())
    if "failed" not in lines and "pid" in lines:
        return int(lines["pid"])
    if "pid" in lines:
        os.waitpid(int(lines["pid"]), 0)
    code, _, step = lines.get("failed", f"{errno.EIO} enter the sandbox").partition(" ")
    raise OSError(int(code), os.strerror(int(code)), step)


def join(entry: Entry, reset: tuple[int, ...], report: int) -> NoReturn:
    """In between: outside of the sandbox's pid namespace, so unseen there. Its child is born inside, as our sibling."""
    step = "prepare"
    try:
        pidfd = os.pidfd_open(entry.init)
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
        step = f"enter {entry.directory}"
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
        os.write(report, f"failed {code} {step}\n".encode("ascii", "replace"))
    os._exit(125)
