"""The daemon's side of the process that forks workers."""

import asyncio
import os
import socket
from collections.abc import Callable

from broker.workers import channel as channels
from broker.workers.channel import ChannelClosed
from broker.workers.messages import Exited, Kill, Start, Started, ToForkServer, decode_from_fork_server, encode


class Starter:
    """Starts and kills workers. `gone` is set when the other process has ended: no worker is left then."""

    def __init__(self, channel: socket.socket) -> None:
        self.gone = asyncio.Event()
        self.on_started: Callable[[Started], None] = lambda _: None
        self.on_exited: Callable[[Exited], None] = lambda _: None
        self._channel = channel
        asyncio.get_running_loop().add_reader(channel.fileno(), self._read)

    def start(self, worker: int) -> socket.socket:
        """Start a worker; the daemon's end of its channel."""
        near, far = channels.pair()
        self._tell(Start(worker), far.fileno())
        far.close()
        return near

    def kill(self, worker: int) -> None:
        """Kill a worker, where it has not ended."""
        self._tell(Kill(worker))

    def close(self) -> None:
        """Let the process end, and with it whatever worker is left."""
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()

    def _tell(self, message: ToForkServer, *descriptors: int) -> None:
        try:
            channels.send(self._channel, encode(message), descriptors)
        except OSError:
            self.gone.set()

    def _read(self) -> None:
        try:
            while self._channel.fileno() >= 0:
                message, descriptors = channels.receive(self._channel, wait=False)
                for fd in descriptors:
                    os.close(fd)
                match decode_from_fork_server(message):
                    case Started() as started:
                        self.on_started(started)
                    case Exited() as exited:
                        self.on_exited(exited)
        except BlockingIOError:
            return
        except ChannelClosed:
            self.close()
            self.gone.set()
