"""A command's three streams: made for its launch, or taken from a parked sandbox, for which they were made ahead."""

import contextlib
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field

from sandbox.output import Budget, Pipe, feed


@dataclass(slots=True)
class Ready:
    """Pipes of which a parked sandbox has the far ends; nobody else ever had either. What is not taken is closed."""

    out: Pipe = field(init=False)
    err: Pipe = field(init=False)
    stdin: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        with contextlib.ExitStack() as undo:  # the second may fail for want of descriptors
            self.out = _made(undo)
            self.err = _made(undo)
            self.stdin = os.pipe2(os.O_CLOEXEC)
            undo.pop_all()

    def close(self) -> None:
        """Close what is left."""
        self.out.close()
        self.err.close()
        _close(self.stdin)
        self.stdin = (-1, -1)


@dataclass(slots=True)
class Streams:
    """A command's three streams. `merged`: standard error goes where standard output goes."""

    content: bytes
    budget: Budget
    merged: bool = False
    out: Pipe = field(init=False)
    err: Pipe | None = None
    _stdin: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        with contextlib.ExitStack() as undo:
            self.out = _made(undo)
            if not self.merged:
                self.err = _made(undo)
            if self.content:
                self._stdin = os.pipe2(os.O_CLOEXEC)
            else:
                self._stdin = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
            undo.pop_all()

    @property
    def stdio(self) -> dict[int, int]:
        """For a launch."""
        return {0: self._stdin[0], 1: self.out.writer, 2: (self.err or self.out).writer}

    def pipes(self) -> list[tuple[str, Pipe]]:
        """The pipes that are to be read, by name."""
        return [("stdout", self.out), *([("stderr", self.err)] if self.err is not None else [])]

    def begin(self) -> list[Awaitable[None]]:
        """Close what is the command's now; what is to be fed."""
        if self._stdin[0] >= 0:
            os.close(self._stdin[0])
        for _, pipe in self.pipes():
            pipe.close_writer()
        feeding = [feed(self._stdin[1], self.content)] if self.content else []
        self._stdin = (-1, -1)
        return list(feeding)

    def abandon(self) -> None:
        """Close everything: the command was never started."""
        for _, pipe in self.pipes():
            pipe.close()
        _close(self._stdin)
        self._stdin = (-1, -1)

    def take(self, ready: Ready) -> None:
        """Use pipes that were made ahead in place of one's own; those that this command has no use for are closed."""
        self.abandon()
        self.out, ready.out = ready.out, self.out
        if self.err is not None:
            self.err, ready.err = ready.err, self.err
        if self.content:
            self._stdin, ready.stdin = ready.stdin, (-1, -1)
        ready.close()


def _made(undo: contextlib.ExitStack) -> Pipe:
    pipe = Pipe()
    undo.callback(pipe.close)
    return pipe


def _close(pair: tuple[int, int]) -> None:
    for fd in pair:
        if fd >= 0:
            os.close(fd)
