"""The mounts that protect a surveyed workspace. Pure.

A mount point cannot be renamed, removed or replaced in the mount namespace that has it, but a directory *above* one can
be renamed away, taking the mount along. So every directory between the workspace and a frozen path is bound onto
itself first: then the whole chain stays where it is.
"""

from pathlib import Path

from sandbox.plan import Bind, Operation, ReadOnly, Tmpfs
from sandbox.protect.below import above as directories_above
from sandbox.protect.names import is_git
from sandbox.protect.survey import Survey

EMPTY_BYTES = 4096


def operations(
    workspace: Path, found: Survey, *, held: tuple[str, ...] = (), private_git: Path | None = None
) -> tuple[Operation, ...]:
    """What to append to a plan after the workspace's own bind.

    `held`: the paths, relative to the workspace, on which `hold` put an empty directory. `private_git`: a directory of
    the server in which a repository that the payload makes at the top of the workspace is kept; without one the payload
    gets a temporary directory.
    """
    frozen = {path for path in found.frozen if not any(above in found.frozen for above in directories_above(path))}
    pinned = {above for path in (*frozen, *found.git_directories, *held) for above in directories_above(path)}
    pinned |= {path for path in found.git_directories if path}
    pinned -= {path for path in pinned if path in frozen or any(above in frozen for above in directories_above(path))}
    steps: list[Operation] = []
    for path in sorted(pinned, key=lambda path: path.count("/")):  # a bind hides the mounts below it: outer ones first
        steps.append(Bind(workspace / path, workspace / path, writable=True))
    steps += [Bind(workspace / path, workspace / path) for path in sorted(frozen)]
    for path in sorted(held):
        steps += _over(workspace / path, private_git if is_git(path) else None, git=is_git(path))
    return tuple(steps)


def _over(place: Path, private: Path | None, *, git: bool) -> list[Operation]:
    if private is not None:
        return [Bind(private, place, writable=True)]
    if git:
        return [Tmpfs(place, 1 << 30)]
    return [Tmpfs(place, EMPTY_BYTES, 0o555), ReadOnly(place)]
