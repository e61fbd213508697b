"""A session's processes: which of them a call has started, however they were forked; and ending exactly those.

A call's processes cannot be told by their parents alone: one that is forked twice belongs to process 1. So all of the
session's processes are counted before the call, and what is new and descends from nothing older is the call's, once its
own first process is dead. Whoever has no parent in there is the first one of a call: a child of the runner, which alone
ends it. Numbers are those that the sandbox itself gives; process 1 is bubblewrap's.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

FIRST = 1  # the namespace's first process
NOBODY = 0  # the parent, seen from inside, of whoever was born by one outside
PATIENCE, POLL = 1.5, 0.01  # seconds
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the session: its parent, and its start in ticks since boot, which tells a number used again."""

    parent: int
    start: int


type Census = Mapping[int, Member]


class Processes:
    """All processes of one sandbox, by a descriptor of its first one's directory in /proc.

    That means this process for ever: once it has ended nothing is found there, whoever has its number then.
    """

    def __init__(self) -> None:
        self._directory = -1

    def hold(self, init: int, *, parent: int) -> None:
        """Take hold of the first process, `init` as the caller calls it. Raises OSError where that cannot be had.

        `parent`: the only parent that it ever has, a child of the caller.
        """
        born: list[str] = []
        with contextlib.suppress(*_GONE):
            self._directory = os.open(f"/proc/{init}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            born = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if born != [str(init)]:  # it has ended, and the number may have been another's already
            self.close()

    def close(self) -> None:
        """Forget it: from here on nobody is found."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def path(self, name: str) -> str:
        """A path below the first process's directory in /proc, for now: it is looked up at once or not at all."""
        return f"/proc/self/fd/{self._directory}/{name}"

    def count(self) -> dict[int, Member]:
        """Those that live. Empty when the sandbox has ended. Raises OSError where it cannot be told.

        The sandbox's own /proc lists exactly these, so it costs what the session has and not what all sessions have.
        """
        members: dict[int, Member] = {}
        try:
            names = os.listdir(self._proc)  # noqa: PTH208  names only
        except _GONE:
            return members
        for name in filter(str.isdigit, names):
            with contextlib.suppress(*_GONE):
                words = _stat(f"{self._proc}/{name}")
                # One whose first thread has ended is shown as dead (Z) while others go on.
                if words[0] not in "ZX" or int(words[17]) > 1:
                    members[int(name)] = Member(int(words[1]), int(words[19]))
        return members

    def kill(self, numbers: Collection[int]) -> None:
        """Send SIGKILL to each that lives."""
        for number in numbers:
            with contextlib.suppress(OSError):
                # A directory of a process in /proc is a descriptor of that process (pidfd_send_signal(2)).
                process = os.open(f"{self._proc}/{number}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    os.close(process)

    def is_in_front(self, number: int) -> bool:
        """Whether a process's group is the one that its terminal listens to."""
        with contextlib.suppress(OSError, IndexError):
            words = _stat(f"{self._proc}/{number}")
            return words[2] == words[5]
        return False

    @property
    def _proc(self) -> str:
        """The sandbox's own /proc, which the payload cannot replace: it may mount nothing."""
        return self.path("root/proc")


def newcomers(before: Census, now: Census, through: Collection[int]) -> set[int]:
    """Who is new and descends neither from an older process nor from the first one of a call. Pure.

    `through`: older processes whose new descendants count all the same: process 1, to which orphans go.
    """
    old = {pid for pid, member in now.items() if before.get(pid) == member}
    calls = {pid for pid, member in now.items() if member.parent == NOBODY}
    spared = (old | calls) - set(through)
    return {pid for pid in now if pid not in old and pid not in through and not _descends(pid, now, spared, through)}


def _descends(pid: int, now: Census, spared: Collection[int], through: Collection[int]) -> bool:
    seen: set[int] = set()
    while pid in now and pid not in seen and pid not in through:
        if pid in spared:
            return True
        seen.add(pid)
        pid = now[pid].parent
    return False


async def end_newcomers(before: Census, processes: Processes, through: Collection[int] = ()) -> bool:
    """Kill what came since `before`, until a count finds nobody; False where that did not succeed (in time)."""
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):
        while found := newcomers(before, processes.count(), {FIRST, *through}):
            processes.kill(found)
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL)
        return True
    return False


def _stat(process: str) -> list[str]:
    """The fields of proc_pid_stat(5) from the state on: the name in parentheses before it may hold anything."""
    return Path(process, "stat").read_text(errors="replace").rpartition(")")[2].split()
