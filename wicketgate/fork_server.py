"""The process that forks the broker's workers.

It is forked before the daemon has a loop or a thread, has everything loaded, and does nothing else: so a worker can be
started at any time from a process of which everything is known, and shares its pages. Each dies with the one above it:
a worker with this process, this process with the daemon.
"""

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Iterable
from typing import Final, NoReturn

from broker.workers import channel as channels
from broker.workers.channel import ChannelClosed
from broker.workers.messages import Exited, FromForkServer, Kill, Start, Started, decode_to_fork_server, encode
from broker.workers.worker import Settings, run_worker
from wicketgate.child import go_on_as

_NOT_STARTED: Final = 1  # the exit code of a worker for which there was no process or descriptor


def start_fork_server(settings: Settings, foreign: Iterable[int]) -> socket.socket:
    """Start it; the daemon's end of its channel. `foreign` are descriptors of the daemon that it must not keep."""
    near, far = channels.pair()
    parent = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        near.close()
        for fd in foreign:
            os.close(fd)
        go_on_as("the process that forks workers", parent, ForkServer(far, settings).run)
    far.close()
    os.close(parent)
    return near


class ForkServer:
    """Serves until the daemon's end of `channel` closes."""

    def __init__(self, channel: socket.socket, settings: Settings) -> None:
        self._channel = channel
        self._settings = settings
        self._workers: dict[int, int] = {}  # number → pidfd

    def run(self) -> None:
        """Return when the daemon has gone."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel, selectors.EVENT_READ)
        with contextlib.suppress(ChannelClosed, BrokenPipeError, ConnectionResetError):
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        self._obey(*channels.receive(self._channel))
                    else:
                        self._reap(key.data)

    def _obey(self, message: bytes, descriptors: list[int]) -> None:
        match decode_to_fork_server(message):
            case Start(worker):
                self._start(worker, descriptors)
            case Kill(worker):
                if worker in self._workers:
                    signal.pidfd_send_signal(self._workers[worker], signal.SIGKILL)

    def _start(self, worker: int, descriptors: list[int]) -> None:
        parent = os.pidfd_open(os.getpid())
        try:
            pid = os.fork() if descriptors else -1
        except OSError:
            pid = -1
        if pid == 0:
            self._be_worker(worker, descriptors[0], parent)
        for fd in (parent, *descriptors):
            os.close(fd)
        if pid < 0:
            self._tell(Exited(worker, _NOT_STARTED))
            return
        self._workers[worker] = os.pidfd_open(pid)
        self._selector.register(self._workers[worker], selectors.EVENT_READ, worker)
        self._tell(Started(worker, pid))

    def _be_worker(self, worker: int, descriptor: int, parent: int) -> NoReturn:
        self._selector.close()
        self._channel.close()
        for pidfd in self._workers.values():
            os.close(pidfd)
        channel = socket.socket(fileno=descriptor)
        go_on_as(f"worker {worker}", parent, lambda: run_worker(channel, self._settings))

    def _reap(self, worker: int) -> None:
        pidfd = self._workers.pop(worker)
        self._selector.unregister(pidfd)
        found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
        if found is not None:
            by_itself = found.si_code == os.CLD_EXITED
            self._tell(Exited(worker, found.si_status if by_itself else -found.si_status))

    def _tell(self, message: FromForkServer) -> None:
        channels.send(self._channel, encode(message))
