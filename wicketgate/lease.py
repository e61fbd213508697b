"""The lease of a run under a grant, renewed for as long as the run lives.

The counterpart of `sandbox.attachment` for a process that waits in poll(2) and can start no thread: one descriptor
stands for the connection and for the time until the next step, and each event on it is one step. When the broker goes,
its copies of the listeners go with it, and the sandbox has no network in that very moment; this is the way back.
"""

import contextlib
import os
import random
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from broker.control.messages import (
    Attach,
    Attached,
    Ended,
    Finished,
    FromBroker,
    Greeting,
    Rejected,
    decode_from_broker,
    encode,
    may_attach_again,
)
from netns import handoff, kernel
from wicketgate.brokered import OwnBroker
from wicketgate.speech import say

if TYPE_CHECKING:
    from netns.bridge import Bridge

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts
PATIENCE: Final = 30.0  # seconds for an answer


class Lease(msgspec.Struct, kw_only=True):
    """An attached session: `broker` serves it, and `bridge` has had its listeners handed over.

    Wait for `fileno()` and call `on_event`; `finish` and close it at the end.
    """

    broker: OwnBroker
    path: Path
    attach: Attach
    bridge: "Bridge"
    attached: bool = True
    _epoll: select.epoll = msgspec.field(default_factory=select.epoll)
    _timer: int = msgspec.field(default_factory=kernel.timer_descriptor)
    _pause: float = FIRST_PAUSE
    _step: Callable[[FromBroker | None], bool] | None = None  # what to do with the next message; None: no broker

    def __post_init__(self) -> None:
        self._epoll.register(self._timer, select.EPOLLIN)
        self._talk(self.broker.connection, self._on_end)

    def fileno(self) -> int:
        """Readable when `on_event` has something to do."""
        return self._epoll.fileno()

    def finish(self, refused: int) -> Finished | None:
        """End the session, as `OwnBroker.finish` does; None where it is not attached at the moment."""
        return self.broker.finish(refused) if self.attached else None

    def close(self) -> None:
        """Let go: of the session too, where it is attached."""
        self._drop()
        self._epoll.close()
        os.close(self._timer)

    def on_event(self) -> bool:
        """Take one step; False where there is none to take, now or ever again."""
        for fd, _events in self._epoll.poll(0, 1):
            if fd != self._timer:
                return self._heard()
            os.read(self._timer, 8)
            if self._step is not None:  # it was asked, and has not answered in time
                return self._try_later()
            return self._connect()
        return False

    def _heard(self) -> bool:
        assert self._step is not None
        answer: FromBroker | None = None
        with contextlib.suppress(OSError, msgspec.DecodeError, handoff.HandoffError):
            message, descriptors = handoff.receive(self.broker.connection)
            for fd in descriptors:
                os.close(fd)
            answer = decode_from_broker(message) if message else None
        return self._step(answer)

    def _on_end(self, answer: FromBroker | None) -> bool:
        """The broker said something unasked, or went away."""
        self.attached = False
        if isinstance(answer, Ended | Rejected) and not may_attach_again(answer.reason):
            return self._give_up(answer)
        why = answer.detail if isinstance(answer, Ended) else "the broker has gone"
        say(f"{why}; the command goes on without a network until it is served again")
        return self._try_later()

    def _connect(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            connection.connect(str(self.path))
        except OSError:  # it is not back yet
            connection.close()
            return self._try_later()
        self._talk(connection, self._on_greeting)
        kernel.set_timer(self._timer, PATIENCE)
        return True

    def _on_greeting(self, answer: FromBroker | None) -> bool:
        if not isinstance(answer, Greeting):
            return self._refused(answer)
        try:
            listeners = self.bridge.reopen_listeners()
            with contextlib.closing(listeners):  # the broker's copies are the only ones from here on
                handoff.send(self.broker.connection, encode(self.attach), listeners.descriptors())
        except OSError:
            return self._try_later()
        self._step = self._on_answer
        return True

    def _on_answer(self, answer: FromBroker | None) -> bool:
        if not isinstance(answer, Attached):
            return self._refused(answer)
        self.attached, self._pause, self._step = True, FIRST_PAUSE, self._on_end
        kernel.set_timer(self._timer, 0)
        say("the command is served again")
        return True

    def _refused(self, answer: FromBroker | None) -> bool:
        if isinstance(answer, Ended | Rejected) and not may_attach_again(answer.reason):
            return self._give_up(answer)
        return self._try_later()

    def _give_up(self, answer: Ended | Rejected) -> bool:
        say(f"{answer.detail}; the command goes on without a network")
        self._drop()
        kernel.set_timer(self._timer, 0)
        return False

    def _try_later(self) -> bool:
        self._drop()
        # Many wait for one broker: they must not all come at once.
        kernel.set_timer(self._timer, self._pause * random.uniform(0.5, 1.0))  # noqa: S311  decides nothing
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return True

    def _talk(self, connection: socket.socket, step: Callable[[FromBroker | None], bool]) -> None:
        self.broker.connection, self._step = connection, step
        self._epoll.register(connection, select.EPOLLIN)

    def _drop(self) -> None:
        if self._step is not None:
            self._epoll.unregister(self.broker.connection)
            self.broker.connection.close()
            self._step = None
