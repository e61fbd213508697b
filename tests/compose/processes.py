"""What the kernel says of the processes in the engine's containers, looked at from outside of all of them."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path


def status(pid: int) -> dict[str, str]:
    """What the kernel says of a process (proc(5), status)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mounts(pid: int) -> dict[str, list[str]]:
    """Mount point → options of the mount and of its file system, as the process sees them."""
    found = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        found[left.split(" ")[4]] = [*left.split(" ")[5].split(","), right.split(" ")[0]]
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll a condition of the real thing, with a bound."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        select.select([], [], [], 0.1)


def kill(pid: int) -> None:
    """As the kernel's out-of-memory killer does, and wait for the end."""
    pidfd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
    finally:
        os.close(pidfd)


def sleepers(mark: str) -> list[int]:
    """The pids of all `sleep MARK` on this machine, in whatever namespaces."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                found.append(int(place.name))
    return found


def below(pid: int) -> list[int]:
    """A process and all that descend from it, the oldest first; those that end meanwhile may be missing."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found
