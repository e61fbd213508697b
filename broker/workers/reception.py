"""Runners that come in: each is greeted, and the session that it asks for is looked at, not taken.

Whoever serves the session reads the message itself, with the listeners that come with it. So a runner's connection goes
on to a worker as it came, and is the session's lease there.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from broker.control.messages import (
    MAX_DESCRIPTORS,
    MAX_MESSAGE,
    Attach,
    Finish,
    Greeting,
    Rejected,
    decode_from_runner,
    encode,
)
from broker.gateway.attach import why_rejected
from broker.policy.reasons import Reason, Refusal

UNUSED_SECONDS: Final = 60.0  # for a runner to ask for a session

type Place = Callable[[Attach, socket.socket], None]


class Reception:
    """One runner that was let in. `place` hands it on, or raises `Refusal` and leaves it here."""

    def __init__(self, connection: socket.socket, authority: bytes, place: Place) -> None:
        """Greet. Raises `OSError` where it has gone already."""
        self._connection = connection
        self._place = place
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.send(encode(Greeting(authority.decode())))
        self._loop.add_reader(connection.fileno(), self._read)
        self._end = self._loop.call_later(UNUSED_SECONDS, self.close)

    def close(self) -> None:
        """End it."""
        if self._connection.fileno() >= 0:
            self._end.cancel()
            self._loop.remove_reader(self._connection.fileno())
            self._connection.close()

    def _read(self) -> None:
        try:
            while self._connection.fileno() >= 0:
                # Without room for descriptors they stay where they are, for whoever takes the message (unix(7)).
                message, _, flags, _ = self._connection.recvmsg(MAX_MESSAGE + 1, 0, socket.MSG_PEEK)
                if not message:
                    self.close()
                    return
                try:
                    self._hand_on(_session_of(message, cut=bool(flags & socket.MSG_TRUNC)))
                    return
                except (msgspec.DecodeError, Refusal) as error:
                    self._take()
                    reason, detail = why_rejected(error)
                    self._connection.send(encode(Rejected(str(reason), detail)))
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _hand_on(self, attach: Attach) -> None:
        self._loop.remove_reader(self._connection.fileno())  # it may be closed here before this returns
        try:
            self._place(attach, self._connection)
        except Refusal:
            self._loop.add_reader(self._connection.fileno(), self._read)
            raise
        self._end.cancel()

    def _take(self) -> None:
        """Take the message that is refused, and what came with it."""
        _, descriptors, _, _ = socket.recv_fds(self._connection, MAX_MESSAGE, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        for fd in descriptors:
            with contextlib.suppress(OSError):
                os.close(fd)


def _session_of(message: bytes, *, cut: bool) -> Attach:
    if cut:
        raise Refusal(Reason.BAD_REQUEST, "the message was cut short")
    match decode_from_runner(message):
        case Attach() as attach:
            return attach
        case Finish():
            raise Refusal(Reason.BAD_REQUEST, "this connection carries no session")
