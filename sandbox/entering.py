"""A further command in a running sandbox, under the restrictions of its first one."""

import errno
import os

from sandbox.births import Entry, signals_to_reset
from sandbox.forking import Here, Spare, Starter


def enter(entry: Entry, starter: Starter | Spare | None = None) -> int:
    """Start a command in a running sandbox; its pid, a child of the caller. Raises OSError naming the step that failed.

    The caller needs CAP_SYS_ADMIN over the sandbox's user namespace. The command is in the sandbox's pid namespace, so
    it ends with the sandbox.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        between = (starter or Here()).join(entry, signals_to_reset(), writer)
        os.close(writer)
        writer = -1
        with os.fdopen(os.dup(reader), "rb") as report:
            told = report.read(4096)  # until the command was executed, or one of the two failed
        os.waitpid(between, 0)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    lines = dict(line.split(" ", 1) for line in told.decode().splitlines())
    if "failed" not in lines and "pid" in lines:
        return int(lines["pid"])
    if "pid" in lines:
        os.waitpid(int(lines["pid"]), 0)
    code, _, step = lines.get("failed", f"{errno.EIO} enter the sandbox").partition(" ")
    raise OSError(int(code), os.strerror(int(code)), step)
