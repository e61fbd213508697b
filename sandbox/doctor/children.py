"""A child in which something is tried: it ends with what it made, and says on a pipe what came of it."""

import os
from collections.abc import Callable
from typing import NoReturn


def hear_child(become: Callable[[int], NoReturn]) -> tuple[bytes, int]:
    """What a forked child writes to the descriptor that `become` is given, until it ends, and its status (wait(2))."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        become(writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        told = report.read()
    _, status = os.waitpid(pid, 0)
    return told, status
