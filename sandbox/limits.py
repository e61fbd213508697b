"""What a session may use, as one value, and that value as resource limits. Pure: nothing is set here.

Three layers carry the bounds, and `doctor` says which of them a host has:
- a cgroup (`sandbox.cgroups`) bounds memory, tasks and cpu of the session as a whole;
- RLIMIT_NPROC bounds tasks without one: the kernel counts them per user namespace (≥ 5.14), so a limit that is set on
  a process *inside* the session's namespace counts the session alone. Set before the namespace exists it would count
  every process of the serving user, and a busy server could start nothing: hence `inner`;
- RLIMIT_DATA bounds each process's private memory. RLIMIT_AS is not used: V8, the JVM and sanitizers reserve terabytes
  of address space that they never touch.
"""

import resource
from collections.abc import Callable, Iterable

import msgspec

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# CPU time past the soft limit before SIGXCPU becomes SIGKILL: time to write a last line.
CPU_GRACE_SECONDS = 5
# When the whole machine runs out of memory the kernel takes a payload first, never the server (proc(5), -1000…1000).
OOM_SCORE_ADJ = 900


class LimitError(ValueError):
    """A limit that cannot work; the text names the field, the value and the range."""


class Rlimit(msgspec.Struct, frozen=True, kw_only=True):
    """One resource limit; `resource` is a `resource.RLIMIT_*` number."""

    resource: int
    soft: int
    hard: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one session. Sizes are bytes.

    `cpu_seconds`, `file_bytes`, `descriptors` hold for each process; `memory_bytes`, `tasks` and `cpus` for the session
    where a cgroup exists. `cpus` is a share of processors (1.5: one and a half), None for all of them.
    """

    memory_bytes: int = 4 * GIB
    tasks: int = 1024
    cpus: float | None = None
    cpu_seconds: int = 3600
    file_bytes: int = 4 * GIB
    descriptors: int = 4096
    output_bytes: int = 10 * MIB
    tmp_bytes: int = GIB

    def __post_init__(self) -> None:
        """Refuse what could not start a shell and what would bound nothing."""
        for name in self.__struct_fields__:
            value: float | None = getattr(self, name)
            if value is None:
                if name == "cpus":
                    continue
                raise LimitError(f"{name} must be a number")
            low, high, unit, fraction = _RANGES[name]
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole or (fraction and isinstance(value, float))) or not low <= value <= high:
                raise LimitError(f"{name} is {value!r}; it must be from {low} to {high} {unit}")


# field → least, most, unit, whether fractions make sense
_RANGES: dict[str, tuple[float, float, str, bool]] = {
    "memory_bytes": (64 * MIB, 1 << 50, "bytes", False),
    "tasks": (16, 1 << 20, "processes and threads", False),
    "cpus": (0.05, 4096, "processors", True),
    "cpu_seconds": (1, 1 << 31, "seconds", False),
    "file_bytes": (MIB, 1 << 50, "bytes", False),
    "descriptors": (64, 1 << 20, "descriptors", False),
    "output_bytes": (4 * KIB, 1 << 40, "bytes", False),
    "tmp_bytes": (MIB, 1 << 50, "bytes", False),
}


def outer_rlimits(limits: Limits, *, memory_bounded: bool) -> tuple[Rlimit, ...]:
    """The limits to set in the child before bubblewrap is executed.

    `memory_bounded`: a cgroup bounds the session's memory, so no process needs a bound of its own.
    """
    found = [
        Rlimit(resource=resource.RLIMIT_CORE, soft=0, hard=0),  # a core file may hold secrets of the payload's tools
        Rlimit(resource=resource.RLIMIT_CPU, soft=limits.cpu_seconds, hard=limits.cpu_seconds + CPU_GRACE_SECONDS),
        _same(resource.RLIMIT_FSIZE, limits.file_bytes),
        _same(resource.RLIMIT_NOFILE, limits.descriptors),
        # Locked memory and message queues are kernel memory outside the bounds above.
        _same(resource.RLIMIT_MEMLOCK, min(64 * MIB, limits.memory_bytes)),
        _same(resource.RLIMIT_MSGQUEUE, 819_200),
        _same(resource.RLIMIT_RTPRIO, 0),
        _same(resource.RLIMIT_NICE, 0),
    ]
    if not memory_bounded:
        found.append(_same(resource.RLIMIT_DATA, limits.memory_bytes))
    return tuple(found)


def inner_rlimits(limits: Limits) -> tuple[Rlimit, ...]:
    """The limits to set with prlimit(2) on bubblewrap's child while `--block-fd` holds it.

    The child then is inside the session's user namespace and has started nothing; whatever it starts inherits them.
    """
    return (_same(resource.RLIMIT_NPROC, limits.tasks),)


def clamp(rlimits: Iterable[Rlimit], hard_limit: Callable[[int], int]) -> tuple[Rlimit, ...]:
    """Lower every limit to the hard limit that is in force: an unprivileged process cannot raise one.

    `hard_limit` maps a resource to the present hard limit, `resource.RLIM_INFINITY` (-1) for none.
    """
    return tuple(_clamp(limit, hard_limit(limit.resource)) for limit in rlimits)


def _clamp(limit: Rlimit, hard: int) -> Rlimit:
    if hard == resource.RLIM_INFINITY or limit.hard <= hard:
        return limit
    return Rlimit(resource=limit.resource, soft=min(limit.soft, hard), hard=hard)


def _same(number: int, value: int) -> Rlimit:
    return Rlimit(resource=number, soft=value, hard=value)
