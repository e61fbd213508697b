"""What a child is told before it becomes bubblewrap, or a further command of a sandbox: values, made before it is born.

The process that forks for a runner loads this without any library: tuples with names cost it nothing.
"""

import resource
import signal
from collections.abc import Mapping
from typing import Final, NamedTuple

FIRST_OTHER: Final = 10  # descriptors below this number are what a launch's `stdio` gives the command, and nothing else
# Ignored by Python itself, not by whoever called it.
IGNORED_BY_PYTHON: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_AS_MANY_AS_THERE_ARE: Final = 1 << 30  # whoever sets it takes what it may
_CANNOT_BE_SET: Final = frozenset({signal.SIGKILL, signal.SIGSTOP})


class Birth(NamedTuple):
    """All that a child needs to become bubblewrap, so that nothing can fail for want of it after it is born.

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


class Entry(NamedTuple):
    """A further command of a running sandbox. `init` is the pid of the sandbox's process 1, as the caller sees it.

    `parent`: the process whose only child that is, and which is a child of the caller that it has not waited for: as
    long as it has the child, the number means no other process.
    `directory` is a path inside. `controlling`: descriptor 0 is a terminal, which becomes the command's own.
    `groups`: `cgroup.procs` files of the sandbox.
    """

    init: int
    parent: int
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    seccomp: bytes
    rlimits: tuple[tuple[int, int, int], ...]
    stdio: Mapping[int, int]
    controlling: bool = False
    groups: tuple[str, ...] = ()
    oom_score_adj: int = 0

    def as_passer(self) -> "Entry":
        """The same with as many descriptors as the caller has, for a program that passes some to another (unix(7)).

        The kernel counts those that are under way for all of a user's processes, and measures them by the limit of
        whoever sends more: what one payload has sent would keep every program with a payload's limit from sending.
        """
        others = tuple(row for row in self.rlimits if row[0] != resource.RLIMIT_NOFILE)
        return self._replace(rlimits=(*others, (resource.RLIMIT_NOFILE, _AS_MANY_AS_THERE_ARE, _AS_MANY_AS_THERE_ARE)))


def signals_to_reset() -> tuple[int, ...]:
    """All but those that the caller had ignored: `nohup` and a shell's background jobs count on it (execve(2))."""
    return tuple(
        number
        for number in signal.Signals
        if number not in _CANNOT_BE_SET
        and (number in IGNORED_BY_PYTHON or signal.getsignal(number) is not signal.SIG_IGN)
    )
