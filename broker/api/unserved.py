"""Answers to connections that no server takes: a document, the end, and time for the peer to read it.

For the processes that let peers in. They read no request, so the answer is the same for all.
"""

import contextlib
import socket
from typing import Final

import msgspec

from broker.api.faults import ApiError

_LINGER: Final = 64  # connections kept open until their answer was read
_PHRASES: Final = {403: "Forbidden", 503: "Service Unavailable"}

_encode = msgspec.json.Encoder().encode


def as_response(error: ApiError) -> bytes:
    """A whole HTTP response with the problem document of a refusal."""
    body, status = _encode(error.document("")), error.fault.status
    head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/problem+json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


class Unserved:
    """The last connections that were answered so. Closed at once, what a peer has sent unread would become a reset that
    hides the answer from it.
    """

    def __init__(self) -> None:
        self._lingering: list[socket.socket] = []

    def answer(self, connection: socket.socket, answer: bytes) -> None:
        """Send the answer and no more; the connection is this object's from here on."""
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(answer)
            connection.shutdown(socket.SHUT_WR)
        self._lingering.append(connection)
        if len(self._lingering) > _LINGER:
            self._lingering.pop(0).close()
