"""Make and list folders under the server's own root for workspaces.

The root is opened once and everything happens relative to that descriptor, without following links: a name that is
exchanged for a link between two steps is refused, not followed. Nothing is made outside the root.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sandbox.workspace.errors import WorkspaceCode, WorkspaceError
from sandbox.workspace.inspect import Workspace, validate_workspace
from sandbox.workspace.rules import CREDENTIAL_NAMES, VERSION_CONTROL_NAMES, ForbiddenRoots
from sandbox.workspace.text import check_name

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create_workspace(name: str, *, forbidden: ForbiddenRoots, uid: int) -> Workspace:
    """Make the folder `name` (mode 0700) under `forbidden.managed` and return it, judged like any other.

    Raises `WorkspaceError`: `BAD_NAME`, `EXISTS`, `BAD_MANAGED_ROOT`, or what `validate_workspace` says. A folder that
    is refused after it was made is removed again.
    """
    check_name(name)
    if name.casefold() in VERSION_CONTROL_NAMES | CREDENTIAL_NAMES:
        raise WorkspaceError(WorkspaceCode.BAD_NAME, f"“{name}” has a meaning of its own", "choose another name")
    with _opened_root(forbidden.managed, uid) as (root, path):
        try:
            os.mkdir(name, 0o700, dir_fd=root)
        except FileExistsError as error:
            raise WorkspaceError(
                WorkspaceCode.EXISTS, f"“{name}” exists already", "choose it or another name"
            ) from error
        except OSError as error:
            raise WorkspaceError(
                WorkspaceCode.BAD_MANAGED_ROOT, f"“{path}” takes no new folder ({error.strerror})", "free space there"
            ) from error
        try:
            made = _identity(name, root)
            judged = validate_workspace(path / name, forbidden=forbidden, uid=uid, follow_symlinks=False)
            if (judged.device, judged.inode) != made:
                raise WorkspaceError(WorkspaceCode.CHANGED, f"“{name}” was exchanged while it was made", "try again")
        except WorkspaceError:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=root)
            raise
        return judged


def list_workspaces(*, forbidden: ForbiddenRoots, uid: int) -> tuple[str, ...]:
    """The names of the folders under `forbidden.managed` that are workspaces, sorted.

    Links, files, foreign folders and names that `create_workspace` would not make are left out.
    """
    with _opened_root(forbidden.managed, uid) as (root, _), os.scandir(root) as entries:
        return tuple(sorted(entry.name for entry in entries if _is_workspace(entry, uid)))


def _is_workspace(entry: "os.DirEntry[str]", uid: int) -> bool:
    try:
        check_name(entry.name)
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == uid
    except (WorkspaceError, OSError):
        return False


@contextlib.contextmanager
def _opened_root(root: Path | None, uid: int) -> Iterator[tuple[int, Path]]:
    if root is None:
        raise WorkspaceError(
            WorkspaceCode.BAD_MANAGED_ROOT, "no root for workspaces is configured", "set one in the configuration"
        )
    try:
        descriptor = os.open(root, _OPEN)
    except OSError as error:
        cure = "create it for the serving user, mode 0700"
        raise WorkspaceError(
            WorkspaceCode.BAD_MANAGED_ROOT, f"“{root}” cannot be opened ({error.strerror})", cure
        ) from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise WorkspaceError(
                WorkspaceCode.BAD_MANAGED_ROOT,
                f"“{root}” belongs to or may be written by others",
                f"give it to user {uid} with mode 0700",
            )
        yield descriptor, root
    finally:
        os.close(descriptor)


def _identity(name: str, root: int) -> tuple[int, int]:
    try:
        descriptor = os.open(name, _OPEN, dir_fd=root)
    except OSError as error:
        raise WorkspaceError(WorkspaceCode.CHANGED, f"“{name}” was exchanged while it was made", "try again") from error
    try:
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    finally:
        os.close(descriptor)
