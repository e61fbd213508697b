"""A number that is used again, in a pid namespace of its own: what was held of its first process finds nobody."""

import os
import signal
from pathlib import Path

from sandbox.census import Processes
from sandbox.execution import _open_process


def forked(work: "tuple[int, int] | None" = None) -> int:
    pid = os.fork()
    if pid == 0:
        if work is not None:
            parent_of_one(*work)
        signal.pause()
    return pid


def parent_of_one(told: int, other_end: int) -> None:
    """Fork one, wait for it, and stay: as bubblewrap's outer process does for a moment."""
    os.close(other_end)
    child = forked()
    os.write(told, f"{child}\n".encode())
    os.waitpid(child, 0)
    os.write(told, b"gone\n")
    signal.pause()


def main() -> None:
    reader, writer = os.pipe()
    parent = forked((writer, reader))
    os.close(writer)
    lines = os.fdopen(reader)
    first = int(lines.readline())
    held = Processes()
    held.hold(first, parent=parent)
    assert first in held.count(), held.count()
    os.close(_open_process(first, parent))

    os.kill(first, signal.SIGKILL)
    assert lines.readline() == "gone\n"
    assert held.count() == {}
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
    again = forked()
    assert again == first, (again, first)
    innocent = forked()

    assert held.count() == {}, "it is another process's number now"
    held.kill([innocent, again])
    late = Processes()
    late.hold(first, parent=parent)
    assert late.count() == {}
    try:
        _open_process(first, parent)
    except ProcessLookupError:
        print("nobody is found by a number that is used again")
    for pid in (again, innocent):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it was killed in the place of one that has ended"
        os.kill(pid, signal.SIGKILL)


main()
