"""What a process and all it started have cost, by the kernel's own accounting. Reads /proc, changes nothing."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICK: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds so far, and proportional memory in bytes now."""

    cpu: float
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Ticks of one core since boot: all of them, and those in which it had something to do."""

    total: int
    busy: int

    def share_since(self, before: "Core") -> float:
        return (self.busy - before.busy) / max(1, self.total - before.total)


def core_now(core: int) -> Core:
    """proc(5) `stat`: user nice system idle iowait irq softirq steal.

    Soft interrupts count as work: on loopback they are the far end's receive path, which no process is charged for.
    """
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    ticks = [int(field) for field in line.split()[1:9]]
    return Core(total=sum(ticks), busy=sum(ticks) - ticks[3] - ticks[4])


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) `stat` from the third on: the second, a name in brackets, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield int(entry), int(_stat(int(entry))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue


def tree(root: int) -> set[int]:
    """A process and its descendants. One that was orphaned is not found; a subject keeps its own in the foreground."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found, todo = set(), [root]
    while todo:
        pid = todo.pop()
        found.add(pid)
        todo.extend(children.get(pid, ()))
    return found


def _cpu(pid: int) -> float:
    """User and system time of a process, with that of its threads and of children it has waited for."""
    fields = _stat(pid)
    return sum(int(field) for field in fields[11:15]) / TICK


def _memory(pid: int) -> int:
    """Proportional set size: pages shared by n processes count 1/n for each."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def cost_of(pids: set[int]) -> Cost:
    cpu, memory = 0.0, 0
    for pid in pids:
        try:
            cpu += _cpu(pid)
            memory += _memory(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return Cost(cpu=cpu, memory=memory)
