"""Who asks for an operation: the credentials that the kernel told of a peer, and the id of its request."""

import array
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

SO_PEERGROUPS: Final = 59
_UCRED: Final = struct.Struct("=iII")
_MAX_GROUPS: Final = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: the peer's credentials as the kernel told them, and the id of the request.

    `administrator`: one of those that the daemon's configuration names so.
    """

    uid: int
    gid: int
    pid: int
    administrator: bool = False
    request_id: str = ""

    def __str__(self) -> str:
        return f"uid={self.uid} gid={self.gid} pid={self.pid}"


def this_process() -> Caller:
    """The daemon itself, where nobody asked for what it does."""
    return Caller(uid=os.getuid(), gid=os.getgid(), pid=os.getpid())


def peer_credentials(connection: socket.socket) -> tuple[int, int, int, tuple[int, ...]]:
    """The pid, uid, gid and further groups of a peer, as they were when it connected (unix(7)). Raises OSError."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid, _groups(connection)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """The supplementary groups of a peer, as they were when it connected."""
    kind = array.array("I")
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _MAX_GROUPS * kind.itemsize)
    except OSError:
        return ()  # a kernel that does not tell: then only users and primary groups count
    kind.frombytes(data[: len(data) - len(data) % kind.itemsize])
    return tuple(kind)
