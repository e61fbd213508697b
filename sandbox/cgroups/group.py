"""One session's control group: make, fill, read, kill, remove.

Order of a launch: `create`, start bubblewrap blocked (`--block-fd`), `Group.add` its child, unblock. What the child
starts is born in the group, so nothing escapes the bounds.
"""

import contextlib
import errno
import os
import re
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.cgroups.layout import OPTIONAL, Support, Version, settings
from sandbox.limits import Limits

PREFIX = "wicketgate-"
_NAME = re.compile(rf"{PREFIX}(\d+)-[0-9A-Za-z_-]{{1,64}}", re.ASCII)


class GroupError(Exception):
    """A group could not be made or removed; the text names the file and the kernel's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the group has seen: how often its bounds struck, for an honest word about how a session ended."""

    out_of_memory_kills: int
    refused_tasks: int
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A session's directories, by controller ("" for a v2 tree)."""

    version: Version
    directories: Mapping[str, Path]

    def add(self, pid: int) -> None:
        """Move a process in. Raises `GroupError` when it is gone or may not be moved: then do not unblock it."""
        for place in self._places():
            _write(place / "cgroup.procs", str(pid))

    def pids(self) -> set[int]:
        """The processes in the group now."""
        found: set[int] = set()
        for place in self._places():
            with contextlib.suppress(OSError):
                found |= {int(word) for word in (place / "cgroup.procs").read_text().split()}
        return found

    def kill(self) -> None:
        """Send SIGKILL to everything in the group; v2 in one write, v1 until a pass finds nobody to kill."""
        for place in self._places():
            with contextlib.suppress(OSError):
                (place / "cgroup.kill").write_text("1")
        with contextlib.ExitStack() as opened:
            processes = {pid: process for pid in self.pids() if (process := _open_process(pid, opened)) is not None}
            for pid in self.pids() & processes.keys():  # still: the number was not another's when it was opened
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(processes[pid], signal.SIGKILL)

    def usage(self) -> Usage:
        """Read the counters. A counter that this kernel lacks is 0."""
        memory, tasks = self._place("memory"), self._place("pids")
        kills = _counter(memory / "memory.events", "oom_kill") + _counter(memory / "memory.oom_control", "oom_kill")
        peak = max(_number(memory / "memory.peak"), _number(memory / "memory.max_usage_in_bytes"))
        return Usage(
            out_of_memory_kills=kills,
            refused_tasks=_counter(tasks / "pids.events", "max"),
            peak_memory_bytes=peak,
        )

    def remove(self, *, deadline: float = 2.0) -> None:
        """Kill what is left and remove the directories, within `deadline` seconds. Removing twice is no error."""
        end = time.monotonic() + deadline
        for place in self._places():
            while not _removed(place):
                if time.monotonic() > end:
                    raise GroupError(f"{place} still holds processes {sorted(self.pids())[:5]} after SIGKILL")
                self.kill()
                select.select([], [], [], 0.002)  # rmdir is the condition itself; nothing signals a v1 group's end

    def _place(self, controller: str) -> Path:
        return self.directories.get(controller, self.directories.get("", Path("/nonexistent")))

    def _places(self) -> list[Path]:
        return sorted(set(self.directories.values()))


def create(support: Support, session: str, limits: Limits) -> Group:
    """Make a group for a session and set its bounds.

    `session` is an id of letters, digits, `_` and `-`. Everything made is removed again when a step fails.
    """
    name = f"{PREFIX}{os.getpid()}-{session}"
    if not _NAME.fullmatch(name):
        raise GroupError(f"{session!r} is no session id")
    if support.version is Version.NONE:
        raise GroupError("this host lets the server make no control group")
    group = Group(
        version=support.version, directories={key: place / name for key, place in support.directories.items()}
    )
    try:
        _make(group, limits)
    except (OSError, GroupError):
        with contextlib.suppress(GroupError):
            group.remove()
        raise
    return group


def _make(group: Group, limits: Limits) -> None:
    for place in sorted(set(group.directories.values())):
        try:
            place.mkdir()
        except OSError as error:
            raise GroupError(f"{place}: {error.strerror}") from error
    for controller, files in settings(group.version, limits, group.directories).items():
        for name, content in files:
            path = group.directories[controller] / name
            if name not in OPTIONAL or path.exists():
                _write(path, content)


def reclaim(support: Support) -> list[Path]:
    """Remove the empty groups of dead makers (whose keeper was killed, too), inner ones first.

    Called once at a server's start.
    """
    removed = []
    for place in sorted(set(support.directories.values())):
        for child in place.iterdir():
            match = _NAME.fullmatch(child.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                with contextlib.suppress(GroupError):
                    removed += [one for one in (*_below(child), child) if _removed(one)]
    return removed


def _open_process(pid: int, until: contextlib.ExitStack) -> int | None:
    """A pidfd, None where there is nobody; in a group of more than there are descriptors the rest waits for a pass."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None
    until.callback(os.close, process)
    return process


def _below(place: Path) -> list[Path]:
    return [child for child in place.glob("wicketgate-*") if child.is_dir()]


def _removed(place: Path) -> bool:
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise GroupError(f"{place}: {error.strerror}") from error
    return True


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content)
    except OSError as error:
        raise GroupError(f"{path}: {error.strerror}") from error


def _counter(path: Path, key: str) -> int:
    try:
        words = path.read_text().split()
    except OSError:
        return 0
    return int(words[words.index(key) + 1]) if key in words else 0


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
