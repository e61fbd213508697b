"""A further command in a running sandbox, under the restrictions of its first one.

Until it is executed it is seen inside by processes of the same user: they can stop it, starve it, kill it. So nothing
here blocks, and no command is waited for without end.
"""

import asyncio
import errno
import os
from collections.abc import Callable

from sandbox.births import Entry, signals_to_reset
from sandbox.children import Child, finish
from sandbox.output import readable

SECONDS = 10.0  # until it is executed; a few milliseconds on a machine at rest
BEGIN = "begin"
CHUNK = 4096


# As `forking.Starter` has it.
type Join = Callable[[Entry, tuple[int, ...], int], int]


async def enter(entry: Entry, join: Join) -> Child:
    """Start a command in a running sandbox. Raises OSError, with the step that the kernel refused as the file's name.

    The caller needs CAP_SYS_ADMIN over the sandbox's user namespace. The command is in the sandbox's pid namespace, so
    it ends with the sandbox. Where this raises, or is cancelled, no process of it is left.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    report = _Report(reader)
    try:
        os.set_blocking(reader, False)
        try:
            between = join(entry, signals_to_reset(), writer)
        finally:
            os.close(writer)
        return await _see_executed(between, report)
    except TimeoutError as error:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), BEGIN) from error
    finally:
        os.close(reader)


async def _see_executed(between: int, report: "_Report") -> Child:
    try:
        try:
            await finish(Child(between).wait())  # nobody inside can stop this one, and nobody else knows whom it bore
        finally:
            report.read()
            report.find_child()
        async with asyncio.timeout(SECONDS):
            await report.read_to_the_end()
        return report.result()
    except BaseException:
        if report.child is not None:
            report.child.kill()
            await finish(report.child.wait())
        raise


class _Report:
    """What the two tell: `pid N`, and `failed CODE STEP`. Its end is that of the last that could tell: an execution."""

    def __init__(self, reader: int) -> None:
        self.child: Child | None = None
        self._reader = reader
        self._told = b""

    def read(self) -> bool:
        """Take what was told by now; whether that is all."""
        while True:
            try:
                chunk = os.read(self._reader, CHUNK)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            self._told += chunk

    async def read_to_the_end(self) -> None:
        """Take everything."""
        while not self.read():
            await readable(self._reader, asyncio.get_running_loop().create_future())

    def find_child(self) -> None:
        """Take hold of the command, if it was born. Raises OSError: then it was killed."""
        if (pid := self._lines().get("pid")) is not None:
            self.child = Child(int(pid))

    def result(self) -> Child:
        """The command, once it is executed. Raises OSError."""
        lines = self._lines()
        if self.child is not None and "failed" not in lines:
            return self.child
        code, _, step = lines.get("failed", f"{errno.EIO} enter the sandbox").partition(" ")
        raise OSError(int(code), os.strerror(int(code)), step)

    def _lines(self) -> dict[str, str]:
        return dict(line.split(" ", 1) for line in self._told.decode().splitlines())
