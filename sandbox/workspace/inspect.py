"""Open a typed path, collect the facts that `rules` decides on, and keep the identity for the launch.

Everything is read through one descriptor: the directory that is judged is the directory that was opened, whatever
happens to its name meanwhile. Nothing is created or changed.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sandbox.workspace.errors import WorkspaceCode, WorkspaceError
from sandbox.workspace.rules import Facts, ForbiddenRoots, Identity, is_below, judge
from sandbox.workspace.text import check_path

SYS_OPENAT2 = 437  # the same number on both architectures
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x02, 0x04  # linux/openat2.h
AT_FDCWD = -100
O_PATH_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """A judged directory: its canonical path, and what the path named when it was judged."""

    path: Path
    device: int
    inode: int

    @contextmanager
    def opened(self) -> Iterator[int]:
        """An O_PATH descriptor of the very directory that was judged, to mount from as `/proc/self/fd/N`.

        Raises `WorkspaceError` with `CHANGED` when the path names something else by now or holds a link.
        """
        descriptor = _open(str(self.path), follow=False)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != (self.device, self.inode):
                raise WorkspaceError(
                    WorkspaceCode.CHANGED, f"“{self.path}” was exchanged for another directory", "choose it again"
                )
            yield descriptor
        finally:
            os.close(descriptor)


def validate_workspace(
    typed: str | Path, *, forbidden: ForbiddenRoots, uid: int | None, follow_symlinks: bool = True
) -> Workspace:
    """Judge a typed path; the one function behind the picker, the API, the remembered choice and the launch.

    Links on the way are followed and the place they lead to is judged, except that a path below the managed root must
    not lead out of it; with `follow_symlinks=False` any link is refused. `uid` is the
    serving user's; None leaves the owner to a launcher that lends the directory. Raises `WorkspaceError`.
    """
    text = check_path(typed)
    descriptor = _open(text, follow=follow_symlinks)
    try:
        facts = _facts(descriptor, forbidden)
    finally:
        os.close(descriptor)
    _stay_inside(Path(os.path.normpath(text)), facts.path, forbidden)
    judge(facts, forbidden, uid)
    return Workspace(path=facts.path, device=facts.identity[0], inode=facts.identity[1])


def _stay_inside(typed: Path, canonical: Path, forbidden: ForbiddenRoots) -> None:
    root = forbidden.managed
    if root is not None and is_below(typed, root) and not is_below(canonical, root):
        raise WorkspaceError(
            WorkspaceCode.SYMLINK, f"a link leads from “{typed}” out of “{root}” to “{canonical}”", "choose another"
        )


def _open(path: str, *, follow: bool) -> int:
    resolve = RESOLVE_NO_MAGICLINKS if follow else RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS
    try:
        return _openat2(path, O_PATH_DIRECTORY, resolve)
    except OSError as error:
        raise WorkspaceError(*_refusal(path, error)) from error


def _refusal(path: str, error: OSError) -> tuple[WorkspaceCode, str, str]:
    match error.errno:
        case errno.ENOENT:
            return WorkspaceCode.NOT_FOUND, f"“{path}” does not exist", "create it first or choose another"
        case errno.ENOTDIR:
            return WorkspaceCode.NOT_A_DIRECTORY, f"“{path}” is not a directory", "choose a directory"
        case errno.ELOOP:
            return WorkspaceCode.SYMLINK, f"“{path}” leads through a symbolic link", "give the path it leads to"
        case errno.EACCES | errno.EPERM:
            cure = "give the serving user the right to enter it"
            return WorkspaceCode.NOT_REACHABLE, f"a directory on the way to “{path}” may not be entered", cure
        case errno.ENAMETOOLONG:
            return WorkspaceCode.TOO_LONG, "the path is longer than Linux allows", "choose a shorter one"
        case _:
            return WorkspaceCode.NOT_REACHABLE, f"“{path}” cannot be opened ({error.strerror})", "choose another"


def _openat2(path: str, flags: int, resolve: int) -> int:
    """openat2(2), Linux ≥ 5.6: `struct open_how` is flags, mode, resolve."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)
    how = ctypes.create_string_buffer(struct.pack("=QQQ", flags, 0, resolve), 24)
    descriptor: int = _libc.syscall(
        ctypes.c_long(SYS_OPENAT2), ctypes.c_int(AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), how, ctypes.c_size_t(24)
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return descriptor


def _facts(descriptor: int, forbidden: ForbiddenRoots) -> Facts:
    found = os.fstat(descriptor)
    path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115  a descriptor's name, not a link of the tree
    identity = (found.st_dev, found.st_ino)
    return Facts(
        path=path,
        identity=identity,
        ancestors=tuple(_ancestors(descriptor)),
        owner=found.st_uid,
        mode=found.st_mode,
        read_only=bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY),
        mounts_below=tuple(_mounts_below(path)),
        protected_below=tuple(_protected_below(identity, forbidden)),
    )


def _ancestors(descriptor: int) -> Iterator[Identity]:
    """Identities of the parents, nearest first, the root last; it names itself as its parent."""
    here, seen = os.dup(descriptor), None
    try:
        while True:
            parent = os.open("..", O_PATH_DIRECTORY, dir_fd=here)
            os.close(here)
            here = parent
            found = os.fstat(here)
            if (found.st_dev, found.st_ino) == seen:
                return
            seen = (found.st_dev, found.st_ino)
            yield seen
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENOENT):
            raise
    finally:
        os.close(here)


def _mounts_below(path: Path) -> Iterator[Path]:
    """Mount points strictly below `path` in this mount namespace (`/proc/self/mountinfo`, field 5)."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        point = unescape(line.split(" ", 5)[4])
        if is_below(point, path):
            yield Path(point)


def unescape(word: str) -> str:
    r"""Undo the octal escapes of mountinfo (`\040` is a space; proc(5))."""
    head, *rest = word.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _protected_below(identity: Identity, forbidden: ForbiddenRoots) -> Iterator[Path]:
    """The forbidden roots that have the directory among their ancestors, by identity."""
    looked_at: dict[str, bool] = {}
    for root in (*forbidden.homes, *forbidden.state, *forbidden.databases):
        below = str(root)
        while (parent := os.path.dirname(below)) != below:  # noqa: PTH120  `Path.parents` takes much longer
            if parent not in looked_at:
                looked_at[parent] = _is(parent, identity)
            if looked_at[parent]:
                yield root
                break
            below = parent


def _is(path: str, identity: Identity) -> bool:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == identity
