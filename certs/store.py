"""The authority's directory and its one state file, without any cryptography.

One file holds the signing key, its certificate and the retired certificates, and is replaced whole by a rename: no
crash and no race can leave a key beside another key's certificate. Writers hold a lock on the directory; readers need
none. A directory or file that someone else could have written is refused, never repaired: the key in it may be theirs.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from certs.errors import AuthorityError

STATE_NAME = "state.json"
_TEMPORARY = ".state-"
_VERSION = 1
_LARGEST = 1 << 20
_START_AGAIN = "move the directory away; a new authority is made at the next start, and running sessions must restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A former signer: trusted until `until`. `bridge` is its certificate for its successor's key (both PEM)."""

    certificate: str
    bridge: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the state file says. `renew` is when the signer must be replaced; `retired` is newest first."""

    key: str = field(repr=False)
    certificate: str
    renew: datetime
    retired: tuple[Retired, ...] = ()

    def trusted(self, now: datetime) -> str:
        """All trusted certificates as PEM, the signer's first."""
        return self.certificate + "".join(old.certificate for old in self.retired if old.until > now)


def authority_directory(state_dir: Path) -> Path:
    """Where the authority lives inside a state directory."""
    return state_dir / "certs"


def read_directory(directory: Path, *, owner: int | None = None) -> State | None:
    """The whole state, None where there is no authority yet. Raises `AuthorityError`.

    `owner`: the user id that it must belong to, this process's own by default.
    """
    try:
        with opened(directory, owner=owner) as descriptor:
            return read_state(descriptor, directory, owner=owner)
    except AuthorityError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def trusted_pem(directory: Path, now: datetime, *, owner: int | None = None) -> bytes | None:
    """The trusted certificates as PEM, or None where the authority has to be made or renewed first.

    `owner`: as in `read_directory`. Raises `AuthorityError` when the directory or the file cannot be trusted.
    """
    state = read_directory(directory, owner=owner)
    if state is None or now >= state.renew:
        return None
    return state.trusted(now).encode()


@contextmanager
def opened(directory: Path, *, create: bool = False, owner: int | None = None) -> Iterator[int]:
    """Open the directory, after checking that nobody else can change what is in it; yields its descriptor."""
    if create:
        _make(directory)
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = "it is a symbolic link or not a directory" if _is_link(directory) else os.strerror(error.errno or 0)
        raise AuthorityError(f"cannot open the certificate directory {directory}: {why}", "name another one") from error
    try:
        # Parents need no check: whoever can swap the directory cannot make one that this user owns and nobody can read.
        _check_private(os.fstat(descriptor), directory, stat.S_IFDIR, owner)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Hold the directory against other writers. The lock goes with the process, however it ends."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def read_state(descriptor: int, directory: Path, *, owner: int | None = None) -> State | None:
    """Read the state file, None where there is none yet."""
    path = directory / STATE_NAME
    try:
        # O_NONBLOCK: a FIFO of that name must not hold the start
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(STATE_NAME, flags, dir_fd=descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuthorityError(f"cannot open {path}: {os.strerror(error.errno or 0)}", _START_AGAIN) from error
    with os.fdopen(file, "rb") as stream:
        found = os.fstat(file)
        _check_private(found, path, stat.S_IFREG, owner)
        if found.st_size > _LARGEST:
            raise AuthorityError(f"{path} is too large to be the authority's state", _START_AGAIN)
        text = stream.read(_LARGEST)
    try:
        return _parse(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise AuthorityError(f"{path} is damaged or of another version", _START_AGAIN) from error


def write_state(descriptor: int, state: State) -> None:
    """Replace the state file in one step. The caller holds the lock."""
    for name in os.listdir(descriptor):
        if name.startswith(_TEMPORARY):  # under the lock, a leftover is a killed writer's
            os.unlink(name, dir_fd=descriptor)
    name = _TEMPORARY + os.urandom(8).hex()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=descriptor)
    with os.fdopen(file, "wb") as stream:
        os.fchmod(file, 0o600)
        stream.write(json.dumps(_format(state), indent=1).encode())
        stream.flush()
        os.fsync(file)
    os.rename(name, STATE_NAME, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    os.fsync(descriptor)


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:  # a parent that cannot be searched
        return False


def _make(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        cause = f"cannot make the certificate directory {directory}: {os.strerror(error.errno or 0)}"
        raise AuthorityError(cause, "name a directory that this user can write") from error


def _check_private(found: os.stat_result, path: Path, kind: int, owner: int | None) -> None:
    owner = os.geteuid() if owner is None else owner
    if stat.S_IFMT(found.st_mode) != kind or (kind == stat.S_IFREG and found.st_nlink != 1):
        raise AuthorityError(f"{path} is not a plain {'directory' if kind == stat.S_IFDIR else 'file'}", _START_AGAIN)
    if found.st_uid != owner:
        cause = f"{path} belongs to user {found.st_uid}, not to user {owner}"
        raise AuthorityError(cause, "run as its owner, or name another directory")
    if found.st_mode & 0o077:
        cause = f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o})"
        raise AuthorityError(cause, f"if only you had access: chmod go= {path}; else {_START_AGAIN}")


def _format(state: State) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "key": state.key,
        "certificate": state.certificate,
        "renew": state.renew.isoformat(),
        "retired": [
            {"certificate": old.certificate, "bridge": old.bridge, "until": old.until.isoformat()}
            for old in state.retired
        ],
    }


def _parse(document: dict[str, Any]) -> State:
    if document["version"] != _VERSION:
        raise ValueError("unknown version")
    return State(
        key=_text(document["key"]),
        certificate=_text(document["certificate"]),
        renew=_time(document["renew"]),
        retired=tuple(
            Retired(certificate=_text(old["certificate"]), bridge=_text(old["bridge"]), until=_time(old["until"]))
            for old in document["retired"]
        ),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("-----BEGIN "):
        raise TypeError("not PEM")
    return value


def _time(value: str) -> datetime:
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError("a time without its zone")
    return time.astimezone(UTC)
