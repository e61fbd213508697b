"""What Wicketgate itself says: one line on standard error, or one JSON document on standard output.

Written straight to the descriptors: a reader that has gone must not turn into a traceback, nor change the exit code.
"""

import importlib
import os
import select


def say(text: str) -> None:
    """Write one line to standard error, if anybody is there."""
    # What was typed may be quoted in it, and must not move the cursor.
    plain = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    write_all(2, f"wicketgate: {plain}\n".encode(errors="backslashreplace"))


def print_document(document: dict[str, object]) -> bool:
    """Write one JSON document to standard output; whether all of it could be written."""
    import json  # noqa: PLC0415  most runs print none

    return write_all(1, f"{json.dumps(document)}\n".encode())


def load_documents() -> None:
    """Load what `print_document` needs, before a change of user that may make it unreadable."""
    importlib.import_module("json")


def write_all(fd: int, data: bytes) -> bool:
    """Write everything, also where the descriptor does not wait by itself; whether it could be written."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(fd, select.POLLOUT)
            writable.poll()
        except OSError:
            return False
    return True
