"""Who asks for an operation: the credentials that the kernel told of a peer, and the id of its request."""

import os
from dataclasses import dataclass


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
