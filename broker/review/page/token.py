"""The token that lets a browser in: made at the start, or kept by the operator in a file that nobody else can read."""

import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from broker.audit.errors import AuditError

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43,256}", re.ASCII)  # 256 bits in base64url at least
_MOST: Final = 4096


class TokenError(AuditError):
    """The file cannot be used. The message names the cause and the cure."""


def make_token() -> str:
    """Return 256 random bits."""
    return secrets.token_urlsafe(32)


def read_token(path: Path, owners: frozenset[int]) -> str | None:
    """Return the token of a file of one of these users; None where there is no file. Raises `TokenError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise TokenError(f"{path} is not a regular file")
        if found.st_uid not in owners:
            raise TokenError(f"{path} belongs to uid {found.st_uid}; give it to uid {max(owners)}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise TokenError(f"{path} can be read by others; chmod 0600 {path}, and put a new token into it")
        text = file.read(_MOST).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(text):
        raise TokenError(f"{path} holds no token: 43 to 256 letters, digits, - and _; `openssl rand -hex 32` makes one")
    return text


def keep_token(path: Path) -> str:
    """Make a token in a new file, for its owner alone. Raises `TokenError`."""
    token = make_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:  # a text's codec is a module, which the log's owner may not read
            file.write(f"{token}\n".encode())
    except OSError as error:
        raise TokenError(f"cannot make {path}: {error.strerror}") from error
    return token
