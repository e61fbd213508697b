"""Gives records as they are appended, from every log of a directory, also from logs that start later.

The files are looked at again every 200 ms, which asks the real condition: has a file grown, is there a new one.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from broker.audit.index import first_of_each
from broker.audit.lines import CHUNK, read_lines
from broker.audit.records import Entry, decode_entry
from broker.audit.segments import Segment, list_segments, open_segment

POLL_SECONDS: Final = 0.2


class Follower:
    """Remembers how far each file was read. What is there when it is made counts as read."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._read: dict[tuple[str, int], int] = {}
        for segment in first_of_each(list_segments(directory)):
            self._read[segment.log, segment.number] = self._whole_size(segment)

    def poll(self) -> list[Entry]:
        """Return what was appended since the last call, by time."""
        entries: list[Entry] = []
        for segment in first_of_each(list_segments(self._directory)):
            entries += self._new_entries(segment)
        return sorted(entries, key=lambda entry: entry.time)

    def follow(self, wait: Callable[[], bool]) -> Iterator[Entry]:
        """Give entries until `wait`, which waits for a moment, says to stop (True)."""
        while True:
            yield from self.poll()
            if wait():
                return

    def _new_entries(self, segment: Segment) -> Iterator[Entry]:
        key = (segment.log, segment.number)
        try:
            descriptor = open_segment(self._directory, segment)
        except FileNotFoundError:
            return
        try:
            offset = self._read.get(key, 0)
            for line in read_lines(descriptor, offset):
                if line.ended or line.overlong:
                    offset = line.end
                    with contextlib.suppress(msgspec.MsgspecError):  # the verifier says what is wrong with it
                        yield decode_entry(line.text)
            self._read[key] = offset
        finally:
            os.close(descriptor)

    def _whole_size(self, segment: Segment) -> int:
        """Return the size up to the last newline: half a line will be read when it is whole."""
        try:
            descriptor = open_segment(self._directory, segment)
        except FileNotFoundError:
            return 0
        try:
            size = os.fstat(descriptor).st_size
            tail = os.pread(descriptor, CHUNK, max(0, size - CHUNK))
            return size - (len(tail) - tail.rfind(b"\n") - 1)
        finally:
            os.close(descriptor)
