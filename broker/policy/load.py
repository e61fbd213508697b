"""Opening the policy file: the only module of the policy that does I/O.

The file is trusted because of who can write it, so this is established on the opened file itself, before a byte of it
is read: a regular file, of root or of the user that runs, writable by nobody else, in directories of which the same
holds. What it says is judged in `document`.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.policy.document import parse_policy
from broker.policy.preset_sources import Machine
from broker.policy.problems import PolicyError, Problem
from broker.policy.rules import Policy

__all__ = ["MAX_BYTES", "PolicyError", "load_policy", "local_machine", "parse_policy", "read_trusted"]

MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_SETTINGS: Final = 1024 * 1024
_SHARED_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def load_policy(path: str | os.PathLike[str], *, advise: bool = False) -> Policy:
    """Read and parse a policy file. Raises `PolicyError` for everything that is wrong with the file or its content.

    The last component must not be a symbolic link; `advise` as in `parse_policy`.
    """
    source = os.fspath(path)
    return parse_policy(read_trusted(source), source=source, machine=local_machine(), advise=advise)


def read_trusted(source: str) -> str:
    """Return the text of a file that only root and this user can have written. Raises `PolicyError`."""
    directory = Path(source).parent.resolve()
    _check_parents(directory, source)
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            content = _read_trusted(Path(source).name, folder, source)
        finally:
            os.close(folder)
    except OSError as error:
        raise _refuse(source, f"cannot be read: {error.strerror}", _cure(error)) from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PolicyError(source, [Problem(line=line, found="not UTF-8", expected="a UTF-8 text")]) from None


def local_machine() -> Machine:
    """Return this machine, as the presets see it."""
    return Machine(read=_read_settings, names=_names, environ=dict(os.environ), home=str(Path.home()))


def _read_trusted(name: str, folder: int, source: str) -> bytes:
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _refuse(source, "is not a regular file", "a file")
        _check_rights(found, source, source)
        if found.st_size > MAX_BYTES:
            raise _refuse(source, f"has {found.st_size} bytes", f"at most {MAX_BYTES}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise _refuse(source, "grows while it is read", f"at most {MAX_BYTES} bytes")
    return content


def _check_parents(directory: Path, source: str) -> None:
    """Whoever can write a directory above the file can put another in its place; a sticky one (/tmp) prevents it."""
    for parent in (directory, *directory.parents):
        try:
            found = parent.stat()
        except OSError as error:
            raise _refuse(source, f"cannot be read: {error.strerror}", _cure(error)) from None
        if not found.st_mode & stat.S_ISVTX:
            _check_rights(found, str(parent), source)


def _check_rights(found: os.stat_result, path: str, source: str) -> None:
    if found.st_uid not in {0, os.geteuid()}:
        expected = "the owner root or the user that reads it, because the owner can change it"
        raise _refuse(source, f"{path} belongs to user {found.st_uid}", expected, f"chown {os.geteuid()} {path}")
    if found.st_mode & _SHARED_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise _refuse(
            source, f"{path} has mode {mode:04o}", "no write right for group and others", f"chmod go-w {path}"
        )


def _cure(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "the path of a policy file"
        case PermissionError():
            return "a file that this user may read"
        case _ if error.errno == 40:  # ELOOP, from O_NOFOLLOW
            return "the file itself, not a symbolic link to it"
        case _:
            return "a file that can be read"


def _refuse(source: str, found: str, expected: str, suggestion: str | None = None) -> PolicyError:
    return PolicyError(source, [Problem(found=found, expected=expected, suggestion=suggestion)])


def _read_settings(path: str) -> str | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            return (
                file.read(_MAX_SETTINGS).decode("utf-8", "replace")
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                else ""
            )
    except OSError:
        return None


def _names(directory: str) -> Sequence[str]:
    try:
        return [entry.name for entry in Path(directory).iterdir()]
    except OSError:
        return ()
