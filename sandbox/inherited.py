"""Which standard streams of the caller a command may have: none that leads further than to its own bytes.

A directory opens every path below and above it, whatever is mounted inside (openat(2)). A socket keeps the network
namespace that it was made in: one of the internet can be disconnected and connected anew (connect(2), AF_UNSPEC), and
a unix one that is not connected, or sends datagrams, reaches the host's abstract names (unix(7)).
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Final

from sandbox.errors import Code, LaunchError

_NAMES: Final = {0: "input", 1: "output", 2: "error"}
_PLAIN: Final = (stat.S_ISREG, stat.S_ISFIFO, stat.S_ISCHR, stat.S_ISBLK)
_CURE: Final = "Give the command a file, a pipe (`cat |`, `| cat`) or a terminal."


def check_streams(numbers: tuple[int, ...]) -> None:
    """Refuse a descriptor that the command must not inherit. Raises LaunchError."""
    for number in numbers:
        trouble = _trouble(number, os.fstat(number).st_mode)
        if trouble:
            raise LaunchError(Code.BAD_CALL, f"Standard {_NAMES[number]} is {trouble}.", _CURE)


@contextlib.contextmanager
def kept_flags() -> Iterator[None]:
    """Give the caller's streams back as they were taken: who has a descriptor may have it wait no more (fcntl(2))."""
    before = {number: fcntl.fcntl(number, fcntl.F_GETFL) for number in _NAMES}
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for number, flags in before.items():
                if fcntl.fcntl(number, fcntl.F_GETFL) != flags:
                    fcntl.fcntl(number, fcntl.F_SETFL, flags)


def _trouble(number: int, mode: int) -> str:
    if any(kind(mode) for kind in _PLAIN):
        return ""
    if stat.S_ISDIR(mode):
        return "a directory, and from it the command would reach the host's files"
    if stat.S_ISSOCK(mode):
        return "" if _only_leads_to_its_peer(number) else "a socket of the host's network, which the command could use"
    return "neither a file, a pipe nor a terminal"


def _only_leads_to_its_peer(number: int) -> bool:
    import socket  # noqa: PLC0415  where a stream is one

    with socket.socket(fileno=os.dup(number)) as found:
        connected = found.family == socket.AF_UNIX and found.type in {socket.SOCK_STREAM, socket.SOCK_SEQPACKET}
        try:
            found.getpeername()
        except OSError:
            return False
    return connected
