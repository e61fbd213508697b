"""The runner's gate: a process outside of the runner's user namespace that lets peers in, and does nothing else.

Inside that namespace every other user looks like the same nobody, so the credentials of a peer (SO_PEERCRED, unix(7))
can only be told out here. It hands accepted connections over with what the kernel said of them, and keeps each until
the runner says that it has it: what a process without descriptors is sent is lost (SCM_RIGHTS, unix(7)), and then the
gate answers. It is also the process that was started: it passes signals on, ends when the runner ends, and the runner
ends when it does.
"""

import array
import contextlib
import errno
import os
import selectors
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.api.callers import peer_credentials
from broker.api.faults import ApiError
from broker.api.unserved import Unserved, as_response
from netns import kernel
from netns.joining import PASSED_ON
from wicketgate.runner.faults import Fault
from wicketgate.speech import say

FAILED: Final = 125
_PAUSE: Final = 0.05  # seconds without descriptors before accepting is tried again
_NEWS: Final = 16  # bytes of an answer of the runner's at most
# Runner → gate, one for each connection, in their order.
TAKEN, NO_DESCRIPTOR, TOO_MANY = b"taken", b"no descriptor", b"too many"
_CURE: Final = "so the request was not read and nothing was started."
_EXHAUSTED: Final = {
    NO_DESCRIPTOR: f"The runner has no file descriptor left, {_CURE} Stop something, or raise its limit (LimitNOFILE).",
    TOO_MANY: f"The runner serves as many connections as it can, {_CURE} Close one, or try again.",
}


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
        self._selector = selectors.DefaultSelector()
        self._unserved = Unserved()
        self._handed: deque[socket.socket] = (
            deque()
        )  # handed over, oldest first; the runner has not said that it has it
        self._next: tuple[socket.socket, Peer] | None = None  # let in, while the runner reads too slowly to be told

    def run(self) -> int:
        """The runner's exit code. The signals that are passed on must be blocked."""
        signals = kernel.signal_descriptor(PASSED_ON)
        ended, alone = os.pidfd_open(self._pid), os.pidfd_open(self._keeper)
        failed = 0
        for one in (self._listener, self._channel):
            one.setblocking(False)
        for fd in (signals, ended, alone, self._listener.fileno(), self._channel.fileno()):
            self._selector.register(fd, selectors.EVENT_READ)
        while True:
            for key, events in self._selector.select():
                if key.fd == ended:
                    code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                    return failed or (code if code >= 0 else 128 - code)
                if key.fd == alone:
                    self._selector.unregister(alone)
                    failed = FAILED
                    say("the process that cleans up after a kill has gone, so the runner ends")
                    os.kill(self._pid, signal.SIGTERM)
                elif key.fd == signals:
                    for number, _code in kernel.read_signals(signals):
                        os.kill(self._pid, number)
                elif key.fd == self._channel.fileno():
                    self._exchange(events)
                else:
                    self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                time.sleep(_PAUSE)
            return  # or that one connection has gone
        try:
            pid, uid, gid, groups = peer_credentials(connection)
        except OSError:
            connection.close()
            return
        if uid in self._admitted.uids or not self._admitted.gids.isdisjoint((gid, *groups)):
            peer = Peer(uid=uid, gid=gid, pid=pid, administrator=uid in self._admitted.administrators)
            self._hand_over(connection, peer)
        else:
            sentence = f"User {uid} may not use this socket; the runner's configuration says who."
            self._unserved.answer(connection, as_response(ApiError(Fault.PEER_REFUSED, sentence)))

    def _hand_over(self, connection: socket.socket, peer: Peer) -> None:
        rights = array.array("i", [connection.fileno()])
        try:
            self._channel.sendmsg([encode(peer)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BlockingIOError:
            self._next = connection, peer
            self._selector.unregister(self._listener)
            self._selector.modify(self._channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:  # the runner is about to go, or too many descriptors of this user are in flight
            detail = f"The runner could not be given the connection ({error.strerror}), {_CURE} Try again."
            self._unserved.answer(connection, as_response(ApiError(Fault.EXHAUSTED, detail)))
        else:
            self._handed.append(connection)

    def _exchange(self, events: int) -> None:
        """Hear what became of connections, and go on where the runner reads again."""
        with contextlib.suppress(OSError):
            while self._handed and (news := self._channel.recv(_NEWS)):
                connection = self._handed.popleft()
                if news == TAKEN:
                    connection.close()
                else:
                    self._unserved.answer(connection, as_response(ApiError(Fault.EXHAUSTED, _EXHAUSTED[news])))
        if events & selectors.EVENT_WRITE and self._next is not None:
            (connection, peer), self._next = self._next, None
            self._selector.modify(self._channel, selectors.EVENT_READ)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._hand_over(connection, peer)
