"""Close a connection whose client may still be sending (RFC 9112 §9.6).

Closing with unread data makes the kernel send a reset, which can destroy the answer before the client has read it. So
the write side is closed, what still comes is thrown away for a bounded time and amount, and then it is over.
"""

import socket

from broker.gateway.reactor import Reactor
from broker.gateway.streams import Stream

SECONDS = 2.0
BYTES = 4 << 20


class Lingering:
    """Takes over a stream that the reactor watches."""

    __slots__ = ("_left", "_reactor", "_stream", "deadline")

    def __init__(self, reactor: Reactor, stream: Stream) -> None:
        self._reactor = reactor
        self._stream = stream
        self._left = BYTES
        self.deadline = reactor.now + SECONDS
        reactor.replace(stream.sock.fileno(), self.on_event)
        reactor.watch(self)
        stream.end()
        self.on_event(0)

    def on_event(self, _events: int) -> None:
        """Throw away what comes."""
        try:
            while self._left > 0:
                # Below TLS: nobody reads it, and after our close_notify the layer above may not want to.
                count = socket.socket.recv_into(self._stream.sock, self._reactor.view)
                if count == 0:
                    break
                self._left -= count
        except BlockingIOError:
            return
        except OSError:
            pass
        self.on_deadline(0)

    def on_deadline(self, _events: int) -> None:
        """Enough: close."""
        self._reactor.unwatch(self)
        self._reactor.remove(self._stream.sock.fileno())
        self._stream.close()
