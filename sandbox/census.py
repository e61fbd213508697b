"""Which processes of a session a call has started, however they were forked; and ending exactly those.

A call's processes cannot be told by their parents alone: one that is forked twice belongs to process 1. So all of the
session's processes are counted before the call, and what is new and descends from nothing older is the call's.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

PATIENCE, POLL = 1.5, 0.01  # seconds


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the session: its parent, and its start in ticks since boot, which tells a number used again."""

    parent: int
    start: int


type Census = Mapping[int, Member]


def count(init: int) -> dict[int, Member]:
    """All processes in the pid namespace of `init`, under the caller's numbers. Empty when it has ended."""
    members: dict[int, Member] = {}
    try:
        wanted = os.readlink(f"/proc/{init}/ns/pid")  # noqa: PTH115  no path
    except OSError:
        return members
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208  names only
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(f"/proc/{pid}/ns/pid") != wanted:  # noqa: PTH115
                continue
            # The name in parentheses may hold anything, so the fields are counted from the last one (proc(5)).
            words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if words[0] not in "ZX":
                members[pid] = Member(int(words[1]), int(words[19]))
    return members


def newcomers(before: Census, now: Census, through: Collection[int], others: Collection[int] = ()) -> set[int]:
    """Who is new and descends neither from an older process nor from one of `others`. Pure.

    `through`: older processes whose new descendants count all the same: process 1, to which orphans go.
    """
    old = {pid for pid, member in now.items() if before.get(pid) == member}
    spared = (old | set(others)) - set(through)
    return {pid for pid in now if pid not in old and pid not in through and not _descends(pid, now, spared, through)}


def _descends(pid: int, now: Census, spared: Collection[int], through: Collection[int]) -> bool:
    seen: set[int] = set()
    while pid in now and pid not in seen and pid not in through:
        if pid in spared:
            return True
        seen.add(pid)
        pid = now[pid].parent
    return False


async def end_newcomers(
    before: Census, init: int, others: Callable[[], Collection[int]], through: Collection[int] = ()
) -> bool:
    """Kill what came since `before`, until a count finds nobody; False where that did not succeed in time."""
    deadline = time.monotonic() + PATIENCE
    while found := newcomers(before, count(init), {init, *through}, others()):
        kill(found)
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL)
    return True


def kill(pids: Collection[int]) -> None:
    """Send SIGKILL to each that lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def find_inside(init: int, number: int) -> int | None:
    """The caller's number for the process that has this number inside; None where there is none."""
    for pid in count(init):
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text(errors="replace")
            if int(status.partition("NSpid:")[2].split("\n", 1)[0].split()[-1]) == number:
                return pid
    return None


def is_in_front(pid: int) -> bool:
    """Whether a process's group is the one that its terminal listens to."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return words[2] == words[5]
    return False
