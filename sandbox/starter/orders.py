"""The runner's side: what it has the process fork, and those that wait until they are told."""

import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from netns import handoff
from sandbox.births import Birth, Entry
from sandbox.starter.messages import MAX_ANSWER, Document, format_birth, format_entry, tell

MOST_WAITING: Final = 16  # for sessions; each holds about half a megabyte


class RunnersStarter:
    """The runner's side; a `forking.Starter`. `pid` is a child of the runner."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel
        self._unheard: deque[_Order] = deque()  # what was ordered and is not answered yet, in order
        self._next: RunnersSpare | None = None  # waits for the next sandbox
        self.waiting: list[RunnersSpare] = []  # for sessions; the one that was made last comes last

    def bear(self, birth: Birth) -> int:
        """As `forking.Starter` has it."""
        document, descriptors = format_birth(birth)
        if birth.urgent and (waiting := self._next) is not None:
            self._next = None
            if pid := waiting.give("bear", document, descriptors):
                return pid
        return self._ask("bear", document, descriptors)

    def expect_birth(self) -> None:
        """As `forking.Starter` has it."""
        if self._next is None:
            with contextlib.suppress(OSError):  # without one it takes longer, that is all
                self._next = self._have_wait("await", {})

    def expect_move(self, group: str) -> None:
        """As `forking.Starter` has it."""
        with contextlib.suppress(OSError):  # the kernel then waits when the move is made
            tell(self._channel, "expect", {"group": group}, [])

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """As `forking.Starter` has it."""
        return self._ask("join", *format_entry(entry, reset, report))

    def prepare(self, groups: tuple[str, ...]) -> "RunnersSpare":
        """As `forking.Starter` has it."""
        spare = self._have_wait("wait", {"groups": groups})
        self.waiting.append(spare)
        if len(self.waiting) > MOST_WAITING:
            self.waiting[0].retire()
        return spare

    def _have_wait(self, what: str, document: Document) -> "RunnersSpare":
        near, far = handoff.pair()
        try:
            return RunnersSpare(self._order(what, document, [far.fileno()]), near, self)
        except BaseException:
            near.close()
            raise
        finally:
            far.close()

    def _ask(self, what: str, document: Document, descriptors: Sequence[int]) -> int:
        return self.hear(self._order(what, document, descriptors))

    def _order(self, what: str, document: Document, descriptors: Sequence[int]) -> "_Order":
        tell(self._channel, what, document, descriptors)
        self._unheard.append(_Order())
        return self._unheard[-1]

    def hear(self, order: "_Order") -> int:
        """The pid of what was ordered, as soon as it is known. Raises OSError."""
        while order.told is None:
            answer = self._channel.recv(MAX_ANSWER)
            if not answer:
                raise OSError(0, "the process that starts commands has gone")
            self._unheard.popleft().told = json.loads(answer)
        if "pid" in order.told:
            return int(order.told["pid"])
        raise OSError(order.told["failed"], os.strerror(order.told["failed"]), order.told["step"])


class _Order:
    """A process that the starter was told to fork, and what it answered."""

    told: dict[str, Any] | None = None


class RunnersSpare:
    """A process that waits for one thing to start, and a `forking.Spare` where that is an entry."""

    def __init__(self, order: _Order, channel: socket.socket, starter: RunnersStarter) -> None:
        self._order = order
        self._channel = channel
        self._starter = starter

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """As `forking.Starter` has it. Where it has ended meanwhile another one is born."""
        return self.give("join", *format_entry(entry, reset, report)) or self._starter.join(entry, reset, report)

    def give(self, what: str, document: Document, descriptors: Sequence[int]) -> int:
        """Tell it what to start; its pid, 0 where it has ended meanwhile or was never born."""
        try:
            tell(self._channel, what, document, descriptors)
        except OSError:
            if pid := self.discard():
                os.waitpid(pid, 0)
            return 0
        self.retire()
        return self._pid()

    def retire(self) -> None:
        """Let it wait no longer."""
        self._channel.close()
        if self in self._starter.waiting:
            self._starter.waiting.remove(self)

    def _pid(self) -> int:
        try:
            return self._starter.hear(self._order)
        except OSError:
            return 0

    def discard(self) -> int:
        """As `forking.Spare` has it."""
        self.retire()
        pid = self._pid()
        if pid:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it, so the number is still its own
        return pid
