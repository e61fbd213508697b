"""Which processes of a session a call has started, however they were forked; and ending exactly those.

A call's processes cannot be told by their parents alone: one that is forked twice belongs to process 1. So all of the
session's processes are counted before the call, and what is new and descends from nothing older is the call's. Numbers
are those that the sandbox itself gives; process 1 is bubblewrap's.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

FIRST = 1  # the namespace's first process
PATIENCE, POLL = 1.5, 0.01  # seconds
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the session: its parent, and its start in ticks since boot, which tells a number used again."""

    parent: int
    start: int


type Census = Mapping[int, Member]


def count(init: int) -> dict[int, Member]:
    """All processes in the pid namespace of `init`. Empty when it has ended. Raises OSError where it cannot be told.

    The sandbox's own /proc lists exactly these, so it costs what the session has and not what all sessions have.
    """
    members: dict[int, Member] = {}
    proc = _proc(init)
    try:
        names = os.listdir(proc)  # noqa: PTH208  names only
    except _GONE:
        return members
    for name in filter(str.isdigit, names):
        with contextlib.suppress(*_GONE):
            words = _stat(f"{proc}/{name}")
            if words[0] not in "ZX":
                members[int(name)] = Member(int(words[1]), int(words[19]))
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
    """Kill what came since `before`, until a count finds nobody; False where that did not succeed (in time).

    `init`: the first process as the caller calls it.
    """
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):
        while found := newcomers(before, count(init), {FIRST, *through}, others()):
            kill(init, found)
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL)
        return True
    return False


def kill(init: int, numbers: Collection[int]) -> None:
    """Send SIGKILL to each that lives."""
    for number in numbers:
        with contextlib.suppress(OSError):
            # A directory of a process in /proc is a descriptor of that process (pidfd_send_signal(2)).
            process = os.open(f"{_proc(init)}/{number}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def number_inside(pid: int) -> int:
    """The sandbox's number of a process that the caller calls `pid`; 0, which no process has, where it is gone."""
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        return int(status.partition("NSpid:")[2].split("\n", 1)[0].split()[-1])
    return 0


def is_in_front(init: int, number: int) -> bool:
    """Whether a process's group is the one that its terminal listens to."""
    with contextlib.suppress(OSError, IndexError):
        words = _stat(f"{_proc(init)}/{number}")
        return words[2] == words[5]
    return False


def _proc(init: int) -> str:
    """The sandbox's own /proc, which the payload cannot replace: it may mount nothing."""
    return f"/proc/{init}/root/proc"


def _stat(process: str) -> list[str]:
    """The fields of proc_pid_stat(5) from the state on: the name in parentheses before it may hold anything."""
    return Path(process, "stat").read_text(errors="replace").rpartition(")")[2].split()
