"""Compare the mounts of a started, still held sandbox with what was surveyed.

bubblewrap takes paths, and resolves links in a source. Between the survey and the mount another session's payload on
the same workspace may exchange a directory for a link to somewhere else, which would then be mounted, writable. So the
launcher looks at the result from outside, through descriptors, before it lets the payload begin.
"""

import os

from sandbox.protect.below import inode_of, open_below
from sandbox.protect.survey import Survey


class MountsDifferError(Exception):
    """The workspace changed while the sandbox was built: nothing may be started; trying again may help."""


def verify(inside: int, found: Survey, *, held: tuple[str, ...] = ()) -> None:
    """Check the workspace as the sandbox sees it.

    `inside` is a descriptor of the workspace in the sandbox's mount namespace, opened through `/proc/PID/root`, where
    PID is bubblewrap's child, held by `--block-fd`. Raises `MountsDifferError`.
    """
    for path, inode in sorted(found.identities):
        if inode_of(inside, path) != inode:
            raise MountsDifferError(f"{path!r} in the workspace was exchanged while the sandbox was built")
    frozen = {path for path, _ in found.identities}
    places = {path: path.rpartition("/")[0] for path in held if path not in frozen}
    above = {place: _mount_of(inside, place) for place in set(places.values())}
    for path, place in places.items():
        if _mount_of(inside, path) == above[place]:
            raise MountsDifferError(f"{path!r} in the workspace is not covered")


def _mount_of(inside: int, path: str) -> str:
    """The id of the mount that a directory lies on (proc(5), fdinfo); empty when it cannot be opened."""
    try:
        descriptor = open_below(inside, path)
    except OSError:
        return ""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:  # noqa: PTH123
            return next(line for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(descriptor)
