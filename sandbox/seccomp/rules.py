"""The words that the description is written in: actions, conditions on arguments, groups of system calls.

Values only. `Rule.answer` is the meaning of a rule, stated without BPF, so that tests can hold the assembled program
against it.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

WORD = 0xFFFF_FFFF


class Action(Enum):
    """What the kernel does with a system call."""

    ALLOW = "allow"
    EPERM = "EPERM"  # known and refused
    ENOSYS = "ENOSYS"  # answered as by a kernel that lacks the call, so that callers fall back
    EPROTONOSUPPORT = "EPROTONOSUPPORT"  # the answer that makes runtimes fall back from MPTCP to TCP
    KILL = "kill"  # the process dies by SIGSYS

    @property
    def errno(self) -> int:
        """The errno that the caller sees, 0 where it sees none."""
        return _ERRNO.get(self, 0)


_ERRNO = {
    Action.EPERM: errno.EPERM,
    Action.ENOSYS: errno.ENOSYS,
    Action.EPROTONOSUPPORT: errno.EPROTONOSUPPORT,
}


class Width(IntEnum):
    """How many bits of an argument the kernel itself looks at.

    An `int` argument must be compared by its low 32 bits only: the kernel drops the rest, so a comparison that looked
    at them would be walked around by setting one (as TIOCSTI filters were). An `unsigned long` needs both words.
    """

    INT = 32
    LONG = 64


class Test(Enum):
    """How an argument is compared with a condition's value."""

    __test__ = False  # not a test case, whatever its name says to a collector

    EQUAL = "=="
    ANY_BIT = "&"  # at least one of the value's bits is set


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison: `(argument & mask) <test> value`."""

    argument: int
    test: Test
    value: int
    mask: int = -1
    width: Width = Width.INT

    def __post_init__(self) -> None:
        """Refuse a comparison that could never hold or that reads outside the argument."""
        bits = (1 << self.width) - 1
        if not 0 <= self.argument < 6 or not 0 <= self.value <= bits or not -1 <= self.mask <= bits:
            raise ValueError(f"impossible condition {self}")
        if self.test is not Test.EQUAL and (self.mask != -1 or self.value == 0):
            raise ValueError(f"a bit test takes its bits from the value alone: {self}")

    def holds(self, arguments: Sequence[int]) -> bool:
        """Tell whether the comparison holds for six 64-bit arguments."""
        argument = arguments[self.argument] & ((1 << self.width) - 1)
        match self.test:
            case Test.EQUAL:
                return argument & self.mask == self.value
            case Test.ANY_BIT:
                return argument & self.value != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All conditions hold → the action."""

    when: tuple[Condition, ...]
    then: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What happens to one system call: the first case that holds, else `otherwise`."""

    otherwise: Action
    cases: tuple[Case, ...] = ()

    def answer(self, arguments: Sequence[int]) -> Action:
        """The action for six arguments, as the description means it."""
        for case in self.cases:
            if all(condition.holds(arguments) for condition in case.when):
                return case.then
        return self.otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """System calls that share a rule, and the reason for it."""

    name: str
    why: str
    rule: Rule
    calls: tuple[str, ...]
    kept_in_log_mode: bool = False
