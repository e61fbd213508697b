"""A pseudo-terminal with a program on it: type keys, wait for what is shown, change its size."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.live.runs import PATIENCE


class Pty:
    """A child in a session of its own, whose controlling terminal is the far end."""

    def __init__(self, command: Sequence[str], *, rows: int = 24, columns: int = 80) -> None:
        self.shown = b""
        self.status: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
                signal.signal(number, signal.SIG_DFL)
            os.environ["PS1"] = "ready> "
            os.environ["TERM"] = "dumb"
            os.execv(command[0], list(command))
        self.resize(rows, columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, pattern: str) -> re.Match[bytes]:
        """Read until the pattern has been shown since the last match, and return the match."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern.encode(), self.shown)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} was not shown: {self.shown!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.fd, 65536)
                except OSError as error:
                    raise AssertionError(f"closed before {pattern!r} was shown: {self.shown!r}") from error
        self.shown = self.shown[found.end() :]
        return found

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.fd)

    def foreground(self) -> int:
        return os.tcgetpgrp(self.fd)

    def end(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if select.select([self.fd], [], [], 0.01)[0]:
                with contextlib.suppress(OSError):  # EIO: the far end is closed
                    self.shown += os.read(self.fd, 65536)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.status = status
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"still running; shown: {self.shown!r}"
