"""The plan as bubblewrap arguments (bwrap(1)). Pure: descriptors are numbers that the launcher has ready."""

from collections.abc import Callable
from typing import assert_never

from sandbox.plan import (
    GID,
    HOSTNAME,
    UID,
    Bind,
    Cover,
    Devices,
    Directory,
    Empty,
    File,
    Operation,
    Plan,
    Processes,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from sandbox.spec import Network

type Supply = Callable[[bytes], int]


def arguments(plan: Plan, supply: Supply, *, seccomp: int) -> list[str]:
    """All arguments after `bwrap` and before the command.

    `supply` takes a file's content and returns a descriptor from which bubblewrap will read it; `seccomp` is the
    descriptor of the compiled filter.
    """
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if plan.network is Network.NONE:
        words.append("--unshare-net")
    words += ["--uid", str(UID), "--gid", str(GID), "--hostname", HOSTNAME]
    words += ["--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    for name, value in plan.environment:
        words += ["--setenv", name, value]
    for operation in plan.operations:
        words += _words(operation, supply)
    return [*words, "--chdir", plan.directory, "--seccomp", str(seccomp)]


def _words(operation: Operation, supply: Supply) -> list[str]:  # noqa: C901  one line an operation
    match operation:
        case Bind(source, destination, writable):
            return ["--bind" if writable else "--ro-bind", str(source), str(destination)]
        case File(destination, content, mode):
            return ["--perms", f"{mode:04o}", "--file", str(supply(content)), str(destination)]
        case Directory(destination, mode):
            return ["--perms", f"{mode:04o}", "--dir", str(destination)]
        case Symlink(target, destination):
            return ["--symlink", target, str(destination)]
        case Tmpfs(destination, size, mode):
            return ["--perms", f"{mode:04o}", "--size", str(size), "--tmpfs", str(destination)]
        case Devices(destination):
            return ["--dev", str(destination)]
        case Processes(destination):
            return ["--proc", str(destination)]
        case Empty(destination):
            return ["--ro-bind-data", str(supply(b"")), str(destination)]
        case Cover(destination, content):
            return ["--perms", "0444", "--ro-bind-data", str(supply(content)), str(destination)]
        case ReadOnly(destination):
            return ["--remount-ro", str(destination)]
        case _:
            assert_never(operation)
