"""One log file being written: whole batches or nothing.

Knows the file and its size, nothing of chains. A batch that cannot be written in full is taken back; a file that
another process changed or removed, or whose sync failed, is given up.
"""

import errno
import os

from broker.audit.segments import Segment, create_segment, finish_segment


class FileLost(OSError):  # noqa: N818
    """The file can no longer be written: go on in a new one."""


class SegmentWriter:
    """Owns the descriptor of one open file. Every method raises `OSError`; `FileLost` means: not this file any more."""

    def __init__(self, directory: int, segment: Segment) -> None:
        self.segment = segment
        self.size = 0
        self._directory = directory
        self._descriptor = create_segment(directory, segment)
        self._unsynced = False

    def write(self, data: bytes) -> None:
        """Append `data` in whole, or leave the file as it was."""
        self._check()
        try:
            written = os.write(self._descriptor, data)
            while written < len(data):  # a full disk takes what fits; the next write says why it was short
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            self._take_back(error)
            raise
        self.size += len(data)
        self._unsynced = True

    def take_back(self, length: int) -> None:
        """Remove the last `length` bytes again, which no other line depends on yet."""
        self.size -= length
        os.ftruncate(self._descriptor, self.size)

    def sync(self) -> None:
        """Put the file on the disk.

        After a failed sync the kernel may drop the pages and report success next time (fsync(2)): the file is lost.
        """
        if not self._unsynced:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise FileLost(error.errno, error.strerror) from error
        self._unsynced = False

    def duplicate(self) -> int:
        """Return another descriptor of the file, for a sync in a thread: this one may be closed meanwhile."""
        return os.dup(self._descriptor)

    def finish(self) -> None:
        """Close the file for good and give it its final name."""
        finish_segment(self._directory, self.segment)
        self.release()

    def release(self) -> None:
        """Close the file as it is, for the next start to repair."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def discard(self) -> None:
        """Remove a file that was never begun."""
        self.release()
        os.unlink(self.segment.name, dir_fd=self._directory)

    def _check(self) -> None:
        """Notice a file that was removed, cut or written by another: what we add there would prove nothing."""
        status = os.fstat(self._descriptor)
        if not status.st_nlink:
            raise FileLost(errno.ENOENT, f"{self.segment.name} was removed")
        if status.st_size != self.size:
            raise FileLost(errno.ESTALE, f"{self.segment.name} was changed by another process")

    def _take_back(self, cause: OSError) -> None:
        try:
            os.ftruncate(self._descriptor, self.size)
        except OSError as error:
            raise FileLost(cause.errno, cause.strerror) from error
