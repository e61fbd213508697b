"""Reads the lines of a log's file in bounded memory, whatever stands in it: a hole of a terabyte is one line, too."""

import os
from collections.abc import Iterator
from typing import Final

import msgspec

MAX_LINE: Final = 64 * 1024
"""No line of ours is longer."""
CHUNK: Final = 1024 * 1024


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line without its newline: `text` stands at `begin`, and the next one at `end`.

    Of one that is longer than any of ours `text` is a begin that is too long as well. `ended`: it has its newline.
    """

    text: bytes
    begin: int
    end: int
    ended: bool = True

    @property
    def overlong(self) -> bool:
        """Whether it cannot be one of ours."""
        return self.end - self.begin > MAX_LINE


def read_lines(descriptor: int, offset: int = 0, *, chunk: int = CHUNK) -> Iterator[Line]:
    """Give each line from `offset` on; what follows the last newline comes last. No more than two chunks are held."""
    begin = at = offset
    rest = too_long = b""
    while data := os.pread(descriptor, chunk, at):
        at += len(data)
        if too_long:
            cut = data.find(b"\n") + 1
            if not cut:
                continue
            end = at - len(data) + cut
            yield Line(too_long, begin, end)
            begin, too_long, data = end, b"", data[cut:]
        *lines, rest = (rest + data).split(b"\n")
        for text in lines:
            end = begin + len(text) + 1
            yield Line(text, begin, end)
            begin = end
        if len(rest) > chunk:
            rest, too_long = b"", rest[: MAX_LINE + 1]
    if rest or too_long:
        yield Line(rest or too_long, begin, at, ended=False)
