"""Wait for a child without a thread and without a signal: its descriptor becomes readable when it ends (pidfd_open(2)).

It starts nothing. A number is only used while its process has not been waited for, so it cannot mean another one.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable

from netns import joining

BY_SIGNAL = 128


class Child:
    """A started child of this process. `ended` resolves to its exit code, 128+n for signal n."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            # What cannot be watched must not run. Nobody has waited for it, so the number still means this child.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._loop.add_reader(self._pidfd, self._reap)

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL, if it lives."""
        self.send(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether it has ended by now, also where the loop has not heard of it yet."""
        return self.ended.done() or joining.has_ended(self._pidfd)

    async def wait(self) -> int:
        """Its exit code."""
        return await asyncio.shield(self.ended)

    def _reap(self) -> None:
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = os.waitstatus_to_exitcode(status)
        self.ended.set_result(code if code >= 0 else BY_SIGNAL - code)


async def finish(work: Awaitable[object]) -> None:
    """Do this to its end, even if cancelled meanwhile; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
