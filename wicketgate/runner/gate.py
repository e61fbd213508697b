"""The runner's gate: a process outside of the runner's user namespace that lets peers in, and does nothing else.

Inside that namespace every other user looks like the same nobody, so the credentials of a peer (SO_PEERCRED, unix(7))
can only be told out here. It hands accepted connections over with what the kernel said of them. It is also the process
that was started: it passes signals on, ends when the runner ends, and the runner ends when it does.
"""

import array
import contextlib
import os
import selectors
import signal
import socket
import struct
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.api.faults import ApiError
from netns import kernel
from netns.joining import PASSED_ON
from wicketgate.runner.faults import Fault
from wicketgate.speech import say

SO_PEERGROUPS: Final = 59
_UCRED: Final = struct.Struct("=iII")
_MAX_GROUPS: Final = 65536
FAILED: Final = 125
_LINGER: Final = 64  # refused connections kept open until their answer was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Who may use the socket, by number, and who may allow full access."""

    uids: frozenset[int]
    gids: frozenset[int]
    administrators: frozenset[int]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Gate → runner: a connection that was let in comes with this message."""

    uid: int
    gid: int
    pid: int
    administrator: bool


encode = msgspec.json.Encoder().encode
decode_peer = msgspec.json.Decoder(Peer).decode


class Gate:
    """Serves until the runner (process `pid`) has ended. `keeper`: the process without which the runner must end."""

    def __init__(
        self, listener: socket.socket, channel: socket.socket, admitted: Admitted, pid: int, keeper: int
    ) -> None:
        self._listener = listener
        self._channel = channel
        self._admitted = admitted
        self._pid = pid
        self._keeper = keeper
        self._lingering: list[socket.socket] = []

    def run(self) -> int:
        """The runner's exit code. The signals that are passed on must be blocked."""
        signals = kernel.signal_descriptor(PASSED_ON)
        ended, alone = os.pidfd_open(self._pid), os.pidfd_open(self._keeper)
        failed = 0
        self._listener.setblocking(False)
        selector = selectors.DefaultSelector()
        for fd in (signals, ended, alone, self._listener.fileno()):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == ended:
                    code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                    return failed or (code if code >= 0 else 128 - code)
                if key.fd == alone:
                    selector.unregister(alone)
                    failed = FAILED
                    say("the process that cleans up after a kill has gone, so the runner ends")
                    os.kill(self._pid, signal.SIGTERM)
                elif key.fd == signals:
                    for number, _code in kernel.read_signals(signals):
                        os.kill(self._pid, number)
                else:
                    self._accept()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # that one connection has gone, or the runner is about to
            connection, _ = self._listener.accept()
            with connection:
                pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
                if uid in self._admitted.uids or not self._admitted.gids.isdisjoint((gid, *_groups(connection))):
                    peer = Peer(uid=uid, gid=gid, pid=pid, administrator=uid in self._admitted.administrators)
                    rights = array.array("i", [connection.fileno()])
                    self._channel.sendmsg([encode(peer)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                else:
                    self._refuse(connection, uid)

    def _refuse(self, connection: socket.socket, uid: int) -> None:
        error = ApiError(
            Fault.PEER_REFUSED, f"User {uid} may not use this socket; the runner's configuration says who."
        )
        body = encode(error.document(""))
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n"
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(f"{head}Connection: close\r\n\r\n".encode() + body)
            connection.shutdown(socket.SHUT_WR)
        # Closed at once, what the peer has sent unread would become a reset that hides the answer from it.
        self._lingering.append(connection.dup())
        if len(self._lingering) > _LINGER:
            self._lingering.pop(0).close()


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """The supplementary groups of a peer, as they were when it connected."""
    kind = array.array("I")
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _MAX_GROUPS * kind.itemsize)
    except OSError:
        return ()  # a kernel that does not tell: then only users and primary groups count
    kind.frombytes(data[: len(data) - len(data) % kind.itemsize])
    return tuple(kind)
