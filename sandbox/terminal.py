"""The caller's terminal, given back as it was taken.

The payload shares the terminal (docs/decisions/0003-terminal.md). Killed in the middle, an editor or a shell leaves it
in raw mode or in the hands of a process group that is gone; what follows us there must find it usable.
"""

import contextlib
import fcntl
import os
import signal
import struct
import termios
from types import TracebackType
from typing import Self

TIOCGEXCL = 0x80045440  # ioctl_tty(2)


class KeptTerminal:
    """Remembers the controlling terminal's settings and restores them at the end, if we have it in the foreground."""

    def __init__(self) -> None:
        self._fd = -1
        self._settings: list[int | list[bytes | int]] = []
        self._exclusive = False

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError, termios.error):
            fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            # In the background the settings are those of whoever is in front, often a shell that edits a line.
            if os.tcgetpgrp(fd) != os.getpgrp():
                os.close(fd)
                return self
            self._fd = fd
            self._settings = termios.tcgetattr(fd)
            self._exclusive = _is_exclusive(fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError, termios.error):
            self._take_back()
        os.close(self._fd)

    def _take_back(self) -> None:
        front = os.tcgetpgrp(self._fd)
        if front != os.getpgrp():
            if _lives(front):
                return  # somebody else's by now: we were put into the background
            # A background process that sets the terminal is stopped, unless it blocks this signal (termios(3)).
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
            os.tcsetpgrp(self._fd, os.getpgrp())
        if self._settings and termios.tcgetattr(self._fd) != self._settings:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._settings)
        if not self._exclusive and _is_exclusive(self._fd):  # nobody but root could open it any more
            fcntl.ioctl(self._fd, termios.TIOCNXCL)


def _is_exclusive(fd: int) -> bool:
    return bool(struct.unpack("i", fcntl.ioctl(fd, TIOCGEXCL, bytes(4)))[0])


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
