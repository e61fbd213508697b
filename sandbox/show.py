"""Show a workspace in a sandbox that was parked without one: the plan's last mounts, made by the runner.

A thread of its own joins the parked sandbox's mount namespace, in which nothing of a payload has run yet, makes there
what bubblewrap would have made, and ends. What was mounted is compared with what was judged afterwards, by the same
code as after bubblewrap (`construct`).
"""

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from netns import mounts
from sandbox.plan import Bind, Operation, ReadOnly, Tmpfs

type Step = tuple[Operation, int]  # for a bind the detached tree, owned


def show(init: int, operations: Sequence[Operation]) -> None:
    """Carry out binds, private directories and their write protection in the sandbox whose process 1 is `init`.

    The caller needs CAP_SYS_ADMIN over both mount namespaces. Raises OSError: then the sandbox is to be thrown away.
    """
    with contextlib.ExitStack() as undo:
        place = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, place)
        steps = [(operation, _source(operation, undo)) for operation in operations]
        failed: list[BaseException] = []
        thread = threading.Thread(target=_inside, args=(place, steps, failed), name="show")
        thread.start()
        thread.join()
    if failed:
        raise failed[0]


def _source(operation: Operation, undo: contextlib.ExitStack) -> int:
    """The tree of a bind, cut off from everything while still in our own mount namespace."""
    if not isinstance(operation, Bind):
        return -1
    source = os.open(operation.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        tree = mounts.open_tree(source)
    finally:
        os.close(source)
    undo.callback(os.close, tree)
    mounts.confine(tree, writable=operation.writable)
    return tree


def _inside(namespace: int, steps: Sequence[Step], failed: list[BaseException]) -> None:
    try:
        os.unshare(os.CLONE_FS)  # a shared root and umask would move with this thread; setns(2) refuses
        os.setns(namespace, os.CLONE_NEWNS)
        os.umask(0)
        mounts.make_writable("/")
        for operation, tree in steps:
            _carry_out(operation, tree)
        mounts.make_read_only("/")
    except BaseException as error:  # noqa: BLE001  it is raised where the thread is awaited
        failed.append(error)


def _carry_out(operation: Operation, tree: int) -> None:
    match operation:
        case Bind(_, destination, _):
            _make_place(destination)
            mounts.attach_tree(tree, str(destination))
        case Tmpfs(destination, size, mode):
            flags = mounts.MS_NOSUID | mounts.MS_NODEV
            mounts.mount_tmpfs(str(destination), f"mode={mode:04o},size={size}", flags=flags)
        case ReadOnly(destination):
            mounts.make_read_only(str(destination))
        case _:
            raise OSError(0, "no mount that a workspace needs", str(operation))


def _make_place(destination: Path) -> None:
    """The directories down to a bind's place, as bubblewrap makes them. Below the workspace they are there already."""
    if not os.path.lexists(destination):
        destination.mkdir(mode=0o755, parents=True)
