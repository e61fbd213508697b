"""Who forks the children that become bubblewrap or a command: this process itself, or whoever does it for it."""

import os
from collections.abc import Callable
from typing import Protocol

import msgspec

from sandbox.births import Birth, Entry
from sandbox.execution import become_bwrap, join


class Starter(Protocol):
    """Who has the children forked. They are children of the calling thread in any case, and end with it."""

    def bear(self, birth: Birth) -> int:
        """Have bubblewrap's process born as the first one of a pid namespace; its pid. Raises OSError."""

    def expect_birth(self) -> None:
        """Say that a further sandbox may come: what can be done for it ahead is done meanwhile. Never waits."""

    def expect_move(self, group: str) -> None:
        """Say that somebody is going to be moved into the group with this `cgroup.procs` soon. Never waits."""

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """Have a process born that starts an entry (`execution.join`); its pid. Raises OSError."""

    def prepare(self, groups: tuple[str, ...]) -> "Spare | None":
        """Have a process born for one entry of a sandbox with these groups. Raises OSError. None: not by this one."""


class Spare(Protocol):
    """A process that is in a sandbox's groups already and waits for one entry."""

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """Give it the entry; as for a Starter."""

    def discard(self) -> int:
        """End it, unless it was given one; its pid, which is still to be waited for, 0 where there is none."""


class Here(msgspec.Struct, frozen=True):
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

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """Fork it."""
        pid = os.fork()
        if pid == 0:
            join(entry, reset, report)
        return pid

    def prepare(self, groups: tuple[str, ...]) -> "Spare | None":
        """Nor here."""
