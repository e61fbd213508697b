"""The directory of a daemon's sockets: anybody may pass through, only the serving user may change what is in it."""

import os
import stat
from pathlib import Path

from wicketgate.identity import Identity


class UnsafeRuntime(Exception):  # noqa: N818  a fact about the host
    """Others could change the directory. The message names it, and the cure."""


def prepare_runtime(runtime: Path, identity: Identity) -> None:
    """Make it, or find it as it has to be. Raises UnsafeRuntime or OSError."""
    runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = runtime.lstat()
    if os.geteuid() == 0 and found.st_uid == 0 and stat.S_ISDIR(found.st_mode):
        os.chown(runtime, identity.uid, identity.gid, follow_symlinks=False)
        found = runtime.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != identity.uid or found.st_mode & 0o022:
        cure = f"It must be a directory of user {identity.uid} that nobody else can write."
        raise UnsafeRuntime(f"The runtime directory {runtime} could be changed by others. {cure}")
