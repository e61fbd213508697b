"""Recognises a ClientHello that differs from an earlier one only where `parse_client_hello` does not look.

A client says the same each time, but for its random, its session id, its key shares and the body of pre_shared_key. Two
hellos of one record that are equal outside of these come to the same `ClientHello`, so the second one is compared
instead of parsed. No I/O.
"""

from struct import Struct
from typing import Final

import msgspec

from broker.wire.client_hello import KEY_SHARE, PRE_SHARED_KEY, ClientHello, parse_client_hello
from broker.wire.records import Buffer

MOST: Final = 8  # hellos that are remembered, by their length
_RANDOM: Final = slice(11, 43)  # behind record header, message header and legacy_version
_SESSION: Final = _RANDOM.stop  # the length of the session id
_uint16: Final = Struct(">H").unpack_from
_two_uint16: Final = Struct(">HH").unpack_from

type _Piece = tuple[int, int, bytes]


class _Shape(msgspec.Struct, frozen=True, gc=False):
    """A hello that was parsed under a limit, and its octets outside of what may differ: (begin, end, octets)."""

    hello: ClientHello
    limit: int
    fixed: tuple[_Piece, ...]


class RecentHellos:
    """See the module. One for each session: what one of them says tells nothing about another."""

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}  # by what a record's header says of its length

    def parse(self, data: bytes, *, limit: int) -> ClientHello | None:
        """Return what `parse_client_hello` returns, or raise what it raises."""
        size = data[3:5]
        shape = self._shapes.get(size)
        if shape is not None and shape.limit == limit and len(data) >= shape.hello.length:
            for begin, end, octets in shape.fixed:
                if data[begin:end] != octets:
                    break
            else:
                return shape.hello
        hello = parse_client_hello(data, limit=limit)
        if hello is not None and hello.length == 5 + _uint16(size)[0]:  # one record: no other has a size of its own
            if len(self._shapes) >= MOST:
                self._shapes.clear()
            self._shapes[size] = _Shape(hello, limit, _fixed(data, hello.length))
        return hello


def _fixed(data: Buffer, length: int) -> tuple[_Piece, ...]:
    """What may not differ in a well-formed hello of one record."""
    pieces = []
    begin = 0
    for first, end in _free(data, length):
        if first > begin:
            pieces.append((begin, first, bytes(data[begin:first])))
        begin = end
    if length > begin:
        pieces.append((begin, length, bytes(data[begin:length])))
    return tuple(pieces)


def _free(data: Buffer, length: int) -> list[tuple[int, int]]:
    """Begins and ends of what may differ, in order."""
    at = _SESSION + 1 + data[_SESSION]
    free = [(_RANDOM.start, _RANDOM.stop), (_SESSION + 1, at)]
    at += 2 + _uint16(data, at)[0]  # cipher suites
    at += 1 + data[at] + 2  # compression methods, and the length of what follows
    while at < length:
        kind, size = _two_uint16(data, at)
        at += 4
        if kind == KEY_SHARE:
            free += _shares(data, at + 2, at + size)
        elif kind == PRE_SHARED_KEY:
            free.append((at, at + size))
        at += size
    return free


def _shares(data: Buffer, at: int, end: int) -> list[tuple[int, int]]:
    """Where the shares themselves stand in a list of them, without their groups and lengths."""
    found = []
    while at + 4 <= end:
        size = _uint16(data, at + 2)[0]
        at += 4
        found.append((at, min(at + size, end)))
        at += size
    return found
