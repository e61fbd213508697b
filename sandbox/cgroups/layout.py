"""Where a process's control groups are and what to write into a new one. Pure: texts in, values out."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from sandbox.limits import Limits

CONTROLLERS = ("memory", "pids", "cpu")
PERIOD = 100_000  # microseconds, the kernel's default for both versions


class Version(Enum):
    """Which interface is usable."""

    V2 = "v2"
    V1 = "v1"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """A writable place for groups. `directories` maps a controller to the directory that new groups go into.

    On v2 all controllers share one directory, which is there under the key "" even without any controller. `missing`
    says, per controller that cannot be had, why.
    """

    version: Version
    directories: Mapping[str, Path] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def bounds_memory(self) -> bool:
        """Whether a session's memory is bounded as a whole."""
        return "memory" in self.directories

    @property
    def bounds_tasks(self) -> bool:
        """Whether a session's processes and threads are bounded by a group."""
        return "pids" in self.directories


def parse_membership(text: str) -> dict[str, str]:
    """`/proc/self/cgroup` → controller → path; the v2 path under the key "" (cgroups(7))."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def parse_mounts(text: str) -> dict[str, tuple[str, Path]]:
    """`/proc/self/mountinfo` → controller → (root of the mount, mount point); v2 under the key "" (proc(5)).

    The first mount of a controller counts. Octal escapes in paths are resolved.
    """
    found: dict[str, tuple[str, Path]] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = (_unescape(word) for word in left.split(" ")[3:5])
        if kind == "cgroup2":
            found.setdefault("", (root, Path(point)))
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                found.setdefault(controller, (root, Path(point)))
    return found


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def locate(root: str, point: Path, path: str) -> Path | None:
    """The directory of group `path` in a mount that shows `root` at `point`; None when the mount does not show it."""
    if "/.." in path:
        return None  # outside this cgroup namespace
    if root == "/":
        return point / path.lstrip("/")
    if path == root or path.startswith(root + "/"):
        return point / path[len(root) :].lstrip("/")
    return None


def settings(version: Version, limits: Limits, controllers: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Controller → (file, content) to write into a new group, in this order."""
    table = _v2(limits) if version is Version.V2 else _v1(limits)
    return {controller: table[controller] for controller in controllers if controller in table}


def _v2(limits: Limits) -> dict[str, list[tuple[str, str]]]:
    quota = "max" if limits.cpus is None else str(round(limits.cpus * PERIOD))
    return {
        # No swap: it only delays the end. The largest process dies, not the session: a terminal survives its build.
        "memory": [
            ("memory.max", str(limits.memory_bytes)),
            ("memory.swap.max", "0"),
            ("memory.oom.group", "0"),
        ],
        "pids": [("pids.max", str(limits.tasks))],
        "cpu": [("cpu.max", f"{quota} {PERIOD}")],
    }


def _v1(limits: Limits) -> dict[str, list[tuple[str, str]]]:
    quota = "-1" if limits.cpus is None else str(round(limits.cpus * PERIOD))
    return {
        # memsw counts memory and swap together, so it is set after memory and to the same value: no swap.
        "memory": [
            ("memory.limit_in_bytes", str(limits.memory_bytes)),
            ("memory.memsw.limit_in_bytes", str(limits.memory_bytes)),
        ],
        "pids": [("pids.max", str(limits.tasks))],
        "cpu": [("cpu.cfs_period_us", str(PERIOD)), ("cpu.cfs_quota_us", quota)],
    }


# Files that not every kernel has (swap accounting off, no group scheduler); without them the bound is weaker, not void.
OPTIONAL = frozenset({"memory.swap.max", "memory.oom.group", "memory.memsw.limit_in_bytes"})
