"""The sockets and the lock of a broker, and the process that lets peers in (`broker.control.door`)."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from broker.control.daemon import StartError
from broker.control.door import ATTACH, CONTROL, Access, Door
from broker.control.places import LOCK_NAME, SOCKET_NAMES
from wicketgate.child import go_on_as

BACKLOG = 512
_TYPES = {CONTROL: socket.SOCK_STREAM, ATTACH: socket.SOCK_SEQPACKET}


def take_lock(runtime: Path) -> int:
    """Hold the runtime directory against a second broker, for as long as the descriptor is open.

    The lock goes with its holder, however that ends: a socket that is found under it is a dead broker's.
    """
    path = runtime / LOCK_NAME
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"The lock {path} cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        cure = "Stop it, or give this one another directory: runtime in [broker] of its configuration."
        raise StartError(f"Another broker serves in {runtime}. {cure}") from error
    return lock


def listen(runtime: Path, access: Mapping[str, Access], own: int) -> dict[str, socket.socket]:
    """Open both sockets. Needs the lock. Where others than root and the broker's user are let in, anybody may knock:
    the door tells them apart by what the kernel says of them.
    """
    listeners: dict[str, socket.socket] = {}
    try:
        for role, name in SOCKET_NAMES.items():
            closed = not access[role].gids and access[role].uids <= {0, own}
            listeners[role] = _listen(runtime / name, _TYPES[role], 0o600 if closed else 0o666)
    except BaseException:
        for listener in listeners.values():
            listener.close()
        raise
    return listeners


def _listen(path: Path, kind: socket.SocketKind, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)  # never open wider than meant, not even for a moment
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        cure = " Choose a shorter runtime directory." if len(os.fsencode(path)) > 107 else ""
        raise StartError(f"The socket {path} cannot be made: {error.strerror or error}.{cure}") from error
    finally:
        os.umask(before)
    return listener


def open_door(
    listeners: Mapping[str, socket.socket], access: Mapping[str, Access], policy: str, lock: int
) -> socket.socket:
    """Start the door and hand it the listeners; the broker's end of the channel."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        near.close()
        os.close(lock)
        go_on_as("the broker's door", parent, Door(far, listeners, access, policy).run)
    far.close()
    os.close(parent)
    for listener in listeners.values():
        listener.close()
    return near
