"""Looks at our daemons from outside: descriptors, memory, threads, namespaces, sockets, files. Changes nothing.

A daemon is known by its command line, which its own forks share; everything else below it belongs to sandboxes. What
the kernel does not let an ordinary user read of a process that hides itself (`PR_SET_DUMPABLE`) is left out, never
guessed.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bench.accounting import tree
from sandbox.starter.waiting import NEXT_NAME

type Figures = dict[str, float]
KINDS: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
PASSING: Final = NEXT_NAME.encode()
SLABS: Final = ("net_namespace", "pid_namespace", "user_namespace")


class DaemonEndedError(RuntimeError):
    """A daemon that was there at the beginning is not there any more."""


class Watch:
    """`roots`: the daemons that were started, by name. `places`: directories whose entries are counted, by name.

    Made while no sandbox is alive.
    """

    def __init__(self, roots: Mapping[str, int], places: Mapping[str, Path]) -> None:
        self._places = places
        self.daemons = {name: pid for root, pid in roots.items() for name, pid in _daemons(root, pid)}
        self._most = 0

    def processes(self) -> set[int]:
        """Everything that this process and its descendants have started; orphans too where it adopts them."""
        return tree(os.getpid())

    def is_quiet(self) -> bool:
        """Whether no more processes are alive than while it settled: some sandboxes are parked, always as many."""
        return not self._most or len(self.processes()) <= self._most

    def sample(self, *, settling: bool = False) -> Figures:
        """Every figure at this moment; `settling`: pools are still being filled. Raises DaemonEndedError."""
        found: Figures = {}
        for name, pid in self.daemons.items():
            if not Path(f"/proc/{pid}/stat").exists():
                raise DaemonEndedError(f"{name} (process {pid}) has ended")
            found |= {f"{name}: {what}": value for what, value in _of_process(pid).items()}
        alive = self.processes()
        if settling or not self._most:
            self._most = max(self._most, len(alive))
        found["processes"] = len(alive)
        found |= _namespaces(alive)
        found |= _slabs()
        for name, place in self._places.items():
            entries, size = _files(place)
            found[f"files in {name}"], found[f"bytes in {name}"] = entries, size
        return found


def _daemons(root: str, pid: int) -> Iterable[tuple[str, int]]:
    """Those of the same command line; a process that waits for one sandbox, and then becomes it, is none of them."""
    wanted = _read(pid, "cmdline")
    alike = sorted(
        other for other in tree(pid) if _read(other, "cmdline") == wanted and _read(other, "comm").strip() != PASSING
    )
    return ((root if other == pid else f"{root} {number}", other) for number, other in enumerate(alike))


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _of_process(pid: int) -> Figures:
    found: Figures = {}
    rows = dict(row.split(":", 1) for row in _read(pid, "status").decode().splitlines())
    found["threads"] = int(rows.get("Threads", "0"))
    found["resident MB"] = int(rows.get("VmRSS", "0 kB").split()[0]) / 1024
    for row in _read(pid, "smaps_rollup").decode().splitlines():
        if row.startswith("Pss:"):
            found["proportional MB"] = int(row.split()[1]) / 1024
    found["children"] = sum(len(_read(pid, f"task/{task}/children").split()) for task in _list(f"/proc/{pid}/task"))
    descriptors = _links(pid)
    if descriptors is not None:
        found["descriptors"] = len(descriptors)
        found["sockets"] = sum(link.startswith("socket:") for link in descriptors)
    if mounts := _read(pid, "mountinfo"):
        found["mounts"] = mounts.count(b"\n")
    return found


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _links(pid: int) -> list[str] | None:
    """What the descriptors of a process are; None where that cannot be read."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    return [link for name in names if (link := _link(f"/proc/{pid}/fd/{name}"))]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _namespaces(pids: Iterable[int]) -> Figures:
    """Different namespaces that a process lives in or holds a descriptor of."""
    seen: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for pid in pids:
        for link in [*(_link(f"/proc/{pid}/ns/{kind}") for kind in KINDS), *(_links(pid) or ())]:
            kind = link.partition(":[")[0]
            if kind in seen and link:
                seen[kind].add(link)
    return {f"namespaces: {kind}": len(found) for kind, found in seen.items()}


def _slabs() -> Figures:
    """Namespace objects in the kernel, of the whole machine: one that only a socket holds is seen here alone."""
    found: Figures = {}
    for row in _read_text("/proc/slabinfo").splitlines():
        name, *counts = row.split()
        if name in SLABS:
            found[f"machine: {name}"] = int(counts[0])
    return found


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _files(place: Path) -> tuple[int, int]:
    """Entries below a directory, and the bytes of its files."""
    entries = size = 0
    for directory, below, files in os.walk(place):
        entries += len(below) + len(files)
        for name in files:
            try:
                size += os.lstat(f"{directory}/{name}").st_size
            except OSError:
                continue
    return entries, size
