"""Opens the log's directory: ours, 0700, reached through no link that another user could change.

Everything else in this package works relative to the descriptor returned here, so a path swapped later has no effect.
"""

import os
import stat
from pathlib import Path

from broker.audit.errors import AuditDirectoryError


def open_directory(path: Path, *, reading: bool = False) -> int:
    """Return a descriptor of `path`, made with mode 0700 (missing parents too) when it is not there.

    For `reading` nothing is made, and root may look at another user's log.
    Raises `AuditDirectoryError`, whose message names the cause and the cure.
    """
    if not reading:
        _make(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise AuditDirectoryError(_why_not(path, error)) from error
    try:
        if not reading or os.geteuid() != 0:
            _check(path, os.fstat(descriptor))
            _check_parent(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return  # a file or a link: the open below says so
    except OSError as error:
        cure = "make its parent writable for this user, or pass another --state-dir"
        raise AuditDirectoryError(f"cannot create {path}: {error.strerror}; {cure}") from error


def _why_not(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return f"{path} is a symbolic link, and the audit log follows none; name the directory itself"
    if path.exists() and not path.is_dir():
        return f"{path} is not a directory; move it away or pass another --state-dir"
    if isinstance(error, FileNotFoundError):
        return f"there is no audit log in {path}; name the state directory with --state-dir"
    return f"cannot open {path}: {error.strerror}"


def _check(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        cure = f"chown it to uid {os.geteuid()}, or run as its owner"
        raise AuditDirectoryError(f"{path} belongs to uid {status.st_uid}, not to uid {os.geteuid()}; {cure}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise AuditDirectoryError(f"{path} has mode {mode:04o}, so others can get at the log; chmod 0700 {path}")


def _check_parent(path: Path) -> None:
    """The parent may be readable by others, but whoever can write it could put another directory in our place."""
    parent = path.parent
    if parent.is_symlink():
        raise AuditDirectoryError(
            f"{parent} is a symbolic link, and the audit log follows none; name the target itself"
        )
    status = parent.stat()
    others_write = stat.S_IMODE(status.st_mode) & 0o022 and not status.st_mode & stat.S_ISVTX
    if others_write or status.st_uid not in (0, os.geteuid()):
        cure = f"chmod go-w {parent} and give it to root or uid {os.geteuid()}"
        raise AuditDirectoryError(f"{parent}, which holds the audit log, can be changed by others; {cure}")
