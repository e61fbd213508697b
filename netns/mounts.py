"""Mounts of a private mount namespace: the calls of mount_setattr(2), open_tree(2) and move_mount(2).

They need CAP_SYS_ADMIN in the user namespace of the calling thread. Nothing made here is visible outside the mount
namespace, and it goes with the last process in it.
"""

import ctypes
import os
import struct

# The same numbers on every architecture (they were given out after the tables were joined).
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
AT_FDCWD = -100
AT_EMPTY_PATH, AT_RECURSIVE = 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x4000, 0x80000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def enter_private_mounts() -> None:
    """Enter a mount namespace whose changes stay inside; the host's later changes still arrive."""
    os.unshare(os.CLONE_NEWNS)
    _mount(None, "/", None, MS_REC | MS_SLAVE, None)


def mount_tmpfs(place: str, options: str, *, flags: int = MS_NOSUID | MS_NODEV | MS_NOEXEC) -> None:
    """Cover a directory with an empty one (tmpfs(5) for the options)."""
    _mount("tmpfs", place, "tmpfs", flags, options)


def mount_processes(place: str = "/proc") -> None:
    """Cover a directory with the process list of the caller's pid namespace.

    EPERM: something masks a part of the /proc that is there already, as container engines do (mount_namespaces(7)).
    """
    _mount("proc", place, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def open_tree(fd: int) -> int:
    """A detached copy of the mount at an O_PATH descriptor, with the mounts below it. The caller owns the result."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    return _call("open_tree", SYS_OPEN_TREE, fd, b"", flags)


def map_owners(tree: int, user_namespace: int) -> None:
    """Show the files of a detached tree under other owners, and ignore its set-id bits and devices.

    A file that belongs to N on the disk is shown as the id to which `user_namespace` maps N, and the other way round
    for what is made. EINVAL: the file system cannot; EPERM: no right over it.
    """
    attributes = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
    _set_attributes(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes, user_namespace=user_namespace)


def confine(tree: int, *, writable: bool) -> None:
    """Ignore a detached tree's set-id bits and devices, and make it read-only unless `writable`."""
    attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (0 if writable else MOUNT_ATTR_RDONLY)
    _set_attributes(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes)


def make_writable(place: str) -> None:
    """Make the one mount at a path writable. EPERM: it belongs to a namespace above, and was read-only there."""
    _set_attributes(AT_FDCWD, os.fsencode(place), 0, 0, clear=MOUNT_ATTR_RDONLY)


def make_read_only(place: str) -> None:
    """Make the one mount at a path read-only."""
    _set_attributes(AT_FDCWD, os.fsencode(place), 0, MOUNT_ATTR_RDONLY)


def attach_tree(tree: int, place: str) -> None:
    """Mount a detached tree at a path."""
    _call("move_mount", SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(place), MOVE_MOUNT_F_EMPTY_PATH)


def _set_attributes(  # noqa: PLR0913  as the system call has them
    directory: int, path: bytes, flags: int, attributes: int, *, clear: int = 0, user_namespace: int = 0
) -> None:
    packed = struct.pack("=QQQQ", attributes, clear, 0, user_namespace)
    size = ctypes.c_size_t(len(packed))
    _call("mount_setattr", SYS_MOUNT_SETATTR, directory, path, flags, packed, size)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"mount {target}")


def _call(name: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return result
