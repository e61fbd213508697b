"""The description applied to one architecture: the finished filter as bytes.

Log mode executes what enforce mode refuses and lets the kernel note it (`SECCOMP_RET_LOG`, audit type 1326). It is for
trying a policy out on trusted commands: it is no boundary, and the launcher must never choose it by itself.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import resources

from sandbox.seccomp.architecture import Architecture
from sandbox.seccomp.assemble import RET_LOG, assemble, return_value
from sandbox.seccomp.description import FOREIGN_ARCHITECTURE, GROUPS, UNKNOWN
from sandbox.seccomp.rules import Action, Group, Rule


class FilterMode(Enum):
    """Refuse, or execute and note what would be refused."""

    ENFORCE = "enforce"
    LOG = "log"


def rules_for(architecture: Architecture) -> Mapping[int, Rule]:
    """Number → rule for every described call that the architecture has."""
    return {number: group.rule for number, group in _calls(architecture)}


@cache
def filter_for(architecture: Architecture, mode: FilterMode = FilterMode.ENFORCE) -> bytes:
    """The filter as an array of `struct sock_filter`, as `bwrap --seccomp FD` reads it.

    The same bytes on every machine and in every run; they equal the committed `file_name(architecture, mode)`.
    """
    match mode:
        case FilterMode.ENFORCE:
            rules, returns = rules_for(architecture), {action: return_value(action) for action in Action}
            unknown, foreign = return_value(UNKNOWN), return_value(FOREIGN_ARCHITECTURE)
        case FilterMode.LOG:
            rules = {number: _logged(group) for number, group in _calls(architecture)}
            returns = dict.fromkeys(Action, RET_LOG) | {a: return_value(a) for a in (Action.ALLOW, Action.ENOSYS)}
            # A number that the kernel may know and the table does not: noted, and the kernel decides.
            unknown = foreign = RET_LOG
    return assemble(audit_arch=architecture.audit_arch, rules=rules, unknown=unknown, foreign=foreign, returns=returns)


@cache
def committed(architecture: Architecture, mode: FilterMode = FilterMode.ENFORCE) -> bytes:
    """The same bytes, read from the package instead of built: a launch need not wait for the assembler (5 ms)."""
    return resources.files(__package__).joinpath(file_name(architecture, mode)).read_bytes()


def file_name(architecture: Architecture, mode: FilterMode) -> str:
    """The committed program's name inside this package, for example `x86_64.bpf` and `x86_64.log.bpf`."""
    return f"{architecture.value}.bpf" if mode is FilterMode.ENFORCE else f"{architecture.value}.{mode.value}.bpf"


def _calls(architecture: Architecture) -> Iterator[tuple[int, Group]]:
    for group in GROUPS:
        for name in group.calls:
            if name in architecture.numbers:
                yield architecture.numbers[name], group


def _logged(group: Group) -> Rule:
    """A refused call is noted and executed; what exists only for fall-back keeps its answer, or nothing would show."""
    if group.kept_in_log_mode or group.rule.otherwise is not Action.ENOSYS:
        return group.rule
    return Rule(otherwise=Action.EPERM)
