"""A group of a server's own, in which the groups of its sessions are made: claimed before the server changes its user,
given to the user who will serve, and undone when the last of the server's processes has ended, however it ended.

A v2 group that gives controllers to its children may hold no process itself (cgroups(7), "no internal processes"), so
the server moves into a leaf; moving a process also needs a right over what holds both groups. Hence one directory for
all, which the serving user owns. Nothing of it is ever shown in a sandbox.
"""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from netns import kernel
from sandbox.cgroups.group import PREFIX, reclaim
from sandbox.cgroups.layout import CONTROLLERS, Support, Version

LEAF = "wicketgate-server"
UNDO_SECONDS, POLL_SECONDS = 2.0, 0.002
CAP_DAC_OVERRIDE = 1
_PROCESSES, _GIVEN = "cgroup.procs", "cgroup.subtree_control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`support` is where sessions' groups go. `made`: place → directory in it; `added`: what a v2 place gives since."""

    support: Support
    uid: int
    made: Mapping[Path, Path] = field(default_factory=dict)
    added: tuple[str, ...] = ()


def claim(support: Support, *, uid: int, gid: int) -> Claim:
    """Claim what `detect` has found, for `uid`. The caller has one thread and no child.

    Never raises for what a host does not let us do: the support of the claim then lacks it and says why.
    """
    if support.version is Version.NONE:
        return Claim(support=support, uid=uid)
    reclaim(support)
    name = f"{PREFIX}{os.getpid()}-server"
    own = {controller: place / name for controller, place in support.directories.items()}
    claimed = Claim(
        support=Support(version=support.version, directories=own, missing=support.missing),
        uid=uid,
        made={place: place / name for place in sorted(set(support.directories.values()))},
        added=_not_given_yet(support),
    )
    try:
        for place in claimed.made:
            _make(claimed, place, gid)
    except OSError as error:
        undo(claimed)
        reason = f"{error.filename}: {error.strerror}"
        return Claim(support=Support(version=Version.NONE, missing=dict.fromkeys(CONTROLLERS, reason)), uid=uid)
    return claimed


def _not_given_yet(support: Support) -> tuple[str, ...]:
    if support.version is not Version.V2:
        return ()
    given = (support.directories[""] / _GIVEN).read_text().split()
    return tuple(one for one in CONTROLLERS if one in support.directories and one not in given)


def _make(claimed: Claim, place: Path, gid: int) -> None:
    own = claimed.made[place]
    unified = claimed.support.version is Version.V2
    if unified and not _is_root(place):
        _refuse_strangers(place)
    own.mkdir()
    lent = [own, own / _PROCESSES] if unified else [own]
    for path in lent if claimed.uid != os.geteuid() else ():
        os.chown(path, claimed.uid, gid)
    if unified:
        (own / LEAF).mkdir()
        _write(own / LEAF / _PROCESSES, str(os.getpid()))
        _write(place / _GIVEN, " ".join(f"+{name}" for name in claimed.added))
        wanted = (name for name in CONTROLLERS if name in claimed.support.directories)
        _write(own / _GIVEN, " ".join(f"+{name}" for name in wanted))


def _is_root(place: Path) -> bool:
    """The root of the whole tree may hold processes, and only it lacks this file (cgroups(7))."""
    return not (place / "cgroup.type").exists()


def _refuse_strangers(place: Path) -> None:
    strangers = sorted({int(word) for word in (place / _PROCESSES).read_text().split()} - {os.getpid()})
    if strangers:
        some = ", ".join(str(pid) if pid else "one that is not visible here" for pid in strangers[:5])
        raise OSError(errno.EBUSY, f"the group also holds processes that are not this server's ({some})", str(place))


def undo(claimed: Claim) -> None:
    """Take everything back, the caller's own place in a group too. What others use by now stays."""
    deadline = time.monotonic() + UNDO_SECONDS
    for place, own in claimed.made.items():
        for group in own.glob(f"{PREFIX}[0-9]*"):
            _remove(group, deadline)
        if claimed.support.version is Version.V2:
            with contextlib.suppress(OSError):
                _write(own / _GIVEN, " ".join(f"-{name}" for name in CONTROLLERS))
            with contextlib.suppress(OSError):
                _write(place / _GIVEN, " ".join(f"-{name}" for name in claimed.added))
            with contextlib.suppress(OSError):
                _write(place / _PROCESSES, str(os.getpid()))
            _remove(own / LEAF, deadline)
        _remove(own, deadline)


def _remove(place: Path, deadline: float) -> None:
    """Remove it once its last process has ended; nothing tells when that is, and rmdir is the condition itself."""
    while True:
        try:
            place.rmdir()
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.ENOTEMPTY} or time.monotonic() > deadline:
                return
            select.select([], [], [], POLL_SECONDS)
        else:
            return


def keep(claimed: Claim) -> int:
    """Start the process that undoes the claim; it does when the last copy of the returned descriptor is closed.

    It is nobody's child, hears no signal but SIGKILL and reads nothing. Started as root it keeps one capability.
    """
    lease, held = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            _be_keeper(claimed, lease)
        os._exit(0)
    os.close(lease)
    os.waitpid(between, 0)
    return held


def _be_keeper(claimed: Claim, lease: int) -> NoReturn:
    try:
        os.setsid()
        os.chdir("/")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(lease, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        # A v1 root cannot be written by its owner either, and the rest is the serving user's.
        kernel.drop_capabilities(bounding=False, keep=0 if os.geteuid() else 1 << CAP_DAC_OVERRIDE)
        while os.read(0, 64):
            pass
        undo(claimed)
    finally:
        os._exit(0)


def _write(path: Path, content: str) -> None:
    if not content:
        return
    try:
        path.write_text(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
