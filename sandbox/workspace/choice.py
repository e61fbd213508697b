"""Remember one workspace per user, as a small file in the server's state directory.

What is remembered is the path, never a verdict: `recall_choice` judges it again with the rules of today. A broken or
foreign file counts as no choice.
"""

import contextlib
import json
import os
import stat
from pathlib import Path

from sandbox.workspace.inspect import Workspace, validate_workspace
from sandbox.workspace.rules import ForbiddenRoots

DIRECTORY = "workspaces"


def choose_workspace(typed: str, *, user: str, state: Path, forbidden: ForbiddenRoots, uid: int) -> Workspace:
    """Judge the typed path and remember it for `user`: both, or nothing and a `WorkspaceError`."""
    workspace = validate_workspace(typed, forbidden=forbidden, uid=uid)
    document = json.dumps({"version": 1, "user": user, "path": str(workspace.path)}) + "\n"
    _replace(state / DIRECTORY, _file_name(user), document.encode())
    return workspace


def recall_choice(*, user: str, state: Path, forbidden: ForbiddenRoots, uid: int) -> Workspace | None:
    """The workspace that `user` chose last, judged anew; None when there is none.

    Raises `WorkspaceError` when there is one that may not be used any more: the reason is for the user.
    """
    path = _remembered(state / DIRECTORY / _file_name(user), user, uid)
    return None if path is None else validate_workspace(path, forbidden=forbidden, uid=uid)


def forget_choice(*, user: str, state: Path) -> None:
    """Forget what `user` chose; no error when there is nothing."""
    (state / DIRECTORY / _file_name(user)).unlink(missing_ok=True)


def _file_name(user: str) -> str:
    import hashlib  # noqa: PLC0415  a command of its own remembers nothing

    # A user's name may be any text (an e-mail address, "..", a path); a digest is always a safe file name.
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest() + ".json"


def _remembered(path: Path, user: str, uid: int) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            return None
        content = file.read(16 << 10)
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict) and document.get("version") == 1 and document.get("user") == user:
            chosen = document.get("path")
            return chosen if isinstance(chosen, str) else None
    return None


def _replace(directory: Path, name: str, content: bytes) -> None:
    """Write a file so that a reader, or a start after a power cut, sees the old one or the new one, never a part."""
    directory.mkdir(mode=0o700, exist_ok=True)
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Without a name until it is complete, so that a kill leaves nothing behind.
        draft = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            os.write(draft, content)
            os.fsync(draft)
            _link_over(draft, parent, name)
        finally:
            os.close(draft)
        os.fsync(parent)
    finally:
        os.close(parent)


def _link_over(draft: int, parent: int, name: str) -> None:
    """Give the draft its name. linkat(2) cannot replace, so an existing file is replaced by a rename."""
    source = f"/proc/self/fd/{draft}"
    try:
        os.link(source, name, dst_dir_fd=parent, follow_symlinks=True)
    except FileExistsError:
        spare = f".{name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(spare, dir_fd=parent)
        os.link(source, spare, dst_dir_fd=parent, follow_symlinks=True)
        os.rename(spare, name, src_dir_fd=parent, dst_dir_fd=parent)
