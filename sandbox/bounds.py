"""The bounds of one sandbox: its control group where the host has them, and the limits of its processes."""

import contextlib
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandbox.errors import AGAIN, Code, LaunchError
from sandbox.limits import OOM_SCORE_ADJ, Limits, Rlimit, clamp, inner_rlimits, outer_rlimits

if TYPE_CHECKING:  # loaded where there are control groups
    from sandbox import cgroups

KEPT_BACK: Final = 1024  # descriptors of the hard limit that no payload may have


def make_group(support: "cgroups.Support | None", limits: Limits, undo: contextlib.ExitStack) -> "cgroups.Group | None":
    """A group of its own for the session; None where the host has none that bound anything. Raises LaunchError."""
    if support is None or not (support.bounds_memory or support.bounds_tasks):
        return None
    from sandbox import cgroups  # noqa: PLC0415

    try:
        group = cgroups.create(support, os.urandom(8).hex(), limits)
    except cgroups.GroupError as error:
        cause = f"The session's control group cannot be made ({error})."
        raise LaunchError(Code.SANDBOX_FAILED, cause, "Start the runner again in a delegated group.") from error
    undo.callback(remove_group, group)
    return group


def members(group: "cgroups.Group | None") -> tuple[str, ...]:
    """The files that name the members of a group."""
    return (
        () if group is None else tuple(str(place / "cgroup.procs") for place in sorted(set(group.directories.values())))
    )


def remove_group(group: "cgroups.Group") -> None:
    """Remove it, if it can be."""
    from sandbox import cgroups  # noqa: PLC0415

    with contextlib.suppress(cgroups.GroupError):
        group.remove()


def outer(limits: Limits, *, group: "cgroups.Group | None", support: "cgroups.Support | None") -> tuple[Rlimit, ...]:
    """What bubblewrap gets before it is executed."""
    memory_bounded = group is not None and support is not None and support.bounds_memory
    return clamp(outer_rlimits(limits, memory_bounded=memory_bounded), _hard_limit)


def inner(limits: Limits) -> tuple[Rlimit, ...]:
    """What its child gets while it is held."""
    return clamp(inner_rlimits(limits), _hard_limit)


def bound(init: int, group: "cgroups.Group | None", limits: Limits) -> None:
    """Bound a held sandbox, whose process 1 is `init`. Raises LaunchError."""
    try:
        for limit in inner(limits):
            resource.prlimit(init, limit.resource, (limit.soft, limit.hard))
        Path(f"/proc/{init}/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
        if group is not None:
            group.add(init)
    except Exception as error:
        raise LaunchError(Code.SANDBOX_FAILED, f"The sandbox cannot be bounded ({error}).", AGAIN) from error


def triples(limits: tuple[Rlimit, ...]) -> tuple[tuple[int, int, int], ...]:
    """As a child takes them: (resource, soft, hard)."""
    return tuple((limit.resource, limit.soft, limit.hard) for limit in limits)


def _hard_limit(number: int) -> int:
    hard = resource.getrlimit(number)[1]
    if number != resource.RLIMIT_NOFILE or hard == resource.RLIM_INFINITY:
        return hard
    # Whoever has as many descriptors in flight as a process of ours may have open keeps it from sending any (unix(7)).
    return hard - min(KEPT_BACK, hard // 2)
