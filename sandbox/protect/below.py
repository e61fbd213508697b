"""Paths below the workspace, and what lies there: opened component by component, so that no link is followed."""

import os
import stat

MAX_TEXT = 1 << 20
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def join(path: str, name: str) -> str:
    """A path below the workspace, relative to it."""
    return f"{path}/{name}" if path else name


def above(path: str) -> tuple[str, ...]:
    """The directories between the workspace and a path below it, outermost first."""
    parts = path.split("/")
    return tuple("/".join(parts[:end]) for end in range(1, len(parts)))


def open_below(root: int, path: str) -> int:
    """Open a directory below `root` component by component, so that no link is followed. Raises OSError."""
    descriptor = os.open(".", _OPEN, dir_fd=root)
    for part in filter(None, path.split("/")):
        try:
            deeper = os.open(part, _OPEN, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


def is_empty(descriptor: int) -> bool:
    """Whether an open directory has no entry."""
    with os.scandir(descriptor) as found:
        return next(found, None) is None


def inode_of(root: int, path: str) -> int | None:
    """The inode of what is at a path below `root`; None where nothing is, or where a link is on the way."""
    parent_path, _, name = path.rpartition("/")
    try:
        parent = open_below(root, parent_path)
    except OSError:
        return None
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino
    except OSError:
        return None
    finally:
        os.close(parent)


def text_of(root: int, path: str) -> str | None:
    """As `read_text`, of a path below `root`."""
    parent_path, _, name = path.rpartition("/")
    try:
        parent = open_below(root, parent_path)
    except OSError:
        return None
    try:
        return read_text(parent, name)
    finally:
        os.close(parent)


def read_text(parent: int, name: str) -> str | None:
    """A small regular file's text; None for anything else (a FIFO must not be waited for, a link not followed)."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TEXT:
            return None
        return file.read(MAX_TEXT).decode("utf-8", "replace")
