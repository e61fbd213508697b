"""Cuts what was read of an HTTP/2 connection into portions of few frames. Pure.

hyper-h2 handles all that it is given before it tells of any of it, and a frame can be nine octets: a flood is to be
noticed after the first hundreds, not after the thousands that one read holds.
"""

from collections.abc import Iterator
from typing import Final

FRAMES: Final = 100  # in a portion, at most
_HEADER: Final = 9  # octets in front of a frame's payload (RFC 9113 §4.1), of which three say how long that is
_LENGTH: Final = 3


class Portions:
    """One direction of a connection. `preface`: octets that come before the first frame."""

    __slots__ = ("_held", "_skip")

    def __init__(self, preface: int = 0) -> None:
        self._skip = preface  # octets until the next frame begins
        self._held = b""  # a begin of a frame that does not tell its length yet

    def of(self, data: bytes) -> Iterator[bytes]:
        """The octets in order; up to two at the end wait for those that follow them."""
        data = self._held + data
        self._held = b""
        begin, at, count = 0, self._skip, 0
        while at + _LENGTH <= len(data):
            if count == FRAMES:
                yield data[begin:at]
                begin, count = at, 0
            at += _HEADER + int.from_bytes(data[at : at + _LENGTH])
            count += 1
        whole = min(at, len(data))
        self._held = data[whole:]
        self._skip = at - whole
        if begin < whole:
            yield data[begin:whole]
