"""What bubblewrap said before it ended: part of the sentence where nobody sees its standard error."""

import fcntl
import os
from typing import Final

from sandbox.errors import Code, LaunchError

_READ, _TOLD = 4096, 300  # bytes that are read, characters that are told
_BETWEEN: Final = "; "  # between lines


def with_last_words(error: LaunchError, reader: int) -> LaunchError:
    """The error with what was written into this pipe. Nothing of a command may have been executed: it could write."""
    words = _read(reader) if error.code is Code.SANDBOX_FAILED else ""
    if not words:
        return error
    return LaunchError(error.code, f"{error.cause.removesuffix('.')}: {words}.", error.cure)


def _read(reader: int) -> str:
    before = fcntl.fcntl(reader, fcntl.F_GETFL)
    os.set_blocking(reader, False)
    try:
        said = os.read(reader, _READ)
    except OSError:
        return ""
    finally:
        fcntl.fcntl(reader, fcntl.F_SETFL, before)
    lines = said.decode("utf-8", "backslashreplace").strip().splitlines()
    text = _BETWEEN.join(line.strip().rstrip(".") for line in lines if line.strip())
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return plain if len(plain) <= _TOLD else f"…{plain[-_TOLD:]}"
