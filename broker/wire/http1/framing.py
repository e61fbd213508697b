"""Body readers: say which of the received octets are body and what is sent on for them. No octet of a body is held.

A reader is fed what was received and answers with the pieces to send, in order, and how many octets it took. Pieces are
views of the input wherever the input is already canonical, so a large body costs a comparison per chunk and no copy.
Whatever is not canonical (an extension, leading zeros, dropped trailers) is replaced by its canonical form: what was
checked is what is sent. A chunk's header and the octets behind it are sent only after they have been verified.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Protocol, assert_never

import msgspec

from broker.policy.reasons import Refusal
from broker.wire.http1.bodies import Body, Chunked, Length, NoBody, UntilClose
from broker.wire.http1.faults import Faults
from broker.wire.http1.fields import TOKEN, split_fields
from broker.wire.http1.limits import Limits
from broker.wire.http1.trailers import format_trailers

type Piece = bytes | memoryview

_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"'
_EXTENSION = rb";" + TOKEN + rb"++(?:=(?:" + TOKEN + rb"++|" + _QUOTED + rb"))?"
_PLAIN_SIZE = re.compile(rb"([1-9A-Fa-f][0-9A-Fa-f]{0,15})\r\n")
# RFC 9112 §7.1 without its "bad whitespace": `5 ` and `5 ;x` have more than one reading among real parsers.
_ANY_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})((?:" + _EXTENSION + rb")*+)\r\n")
_PARTIAL_SIZE = re.compile(rb"[0-9A-Fa-f]{0,16}|[0-9A-Fa-f]{1,16}(?:;[^\r\n]*+)?\r?")
_HOPELESS_TRAILER = re.compile(rb"\n\r?\n|\A\r[^\n]|\A\n")


def _digits(size: int) -> list[bytes]:
    return sorted({b"%x" % size, b"%X" % size})


# Runs of whole chunks of up to 32 octets, matched at once: one by one they would cost a µs each, and a sender of single
# octets could keep the broker from everybody else.
_TINY = 32


def _tiny_chunks(sizes: Iterable[int]) -> bytes:
    return rb"|".join(rb"%b\r\n.{%d}\r\n" % (digits, size) for size in sizes for digits in _digits(size))


_TINY_CHUNKS = re.compile(rb"(?s:" + _tiny_chunks(range(1, _TINY + 1)) + rb")++")
# With zeros before the size: 16 digits at most. No group inside of what is repeated: the matcher of `re` loses it.
_ONE_DIGIT, _TWO_DIGITS = _tiny_chunks(range(1, 16)), _tiny_chunks(range(16, _TINY + 1))
_PADDED_CHUNK = re.compile(rb"(?s:0{0,15}+(" + _ONE_DIGIT + rb")|0{0,14}+(" + _TWO_DIGITS + rb"))")
_PADDED_CHUNKS = re.compile(rb"(?s:0{0,15}+(?:" + _ONE_DIGIT + rb")|0{0,14}+(?:" + _TWO_DIGITS + rb"))++")
_LINE_END = re.compile(rb"\r\n")
_MAX_SIZE = 1 << 63
_EXTENSION_WORK = 64  # what a line with extensions counts for beside their length


class Fed(msgspec.Struct, frozen=True, gc=False):
    """What came of one feed: pieces to send, octets taken (others may follow a complete body), completeness."""

    pieces: Sequence[Piece]
    consumed: int
    done: bool


class BodyReader(Protocol):
    """One body's reader. `feed` raises `Refusal` for what is malformed, `end` where the sender stopped too early."""

    done: bool

    def feed(self, data: memoryview) -> Fed:
        """Take octets from the begin of `data`; the pieces may be views of it."""

    def end(self) -> None:
        """The sender closed its side. Returns only if that is a clean end of the body."""


class LengthReader:
    """A body of exactly `n` octets, passed on unchanged."""

    __slots__ = ("_faults", "done", "remaining")

    def __init__(self, n: int, faults: Faults) -> None:
        self.remaining = n
        self.done = n == 0
        self._faults = faults

    def take(self, available: int) -> int:
        """How many of `available` octets are body; for a data path that moves octets without looking at them."""
        taken = min(available, self.remaining)
        self.remaining -= taken
        self.done = self.remaining == 0
        return taken

    def feed(self, data: memoryview) -> Fed:
        taken = self.take(len(data))
        return Fed((data[:taken],) if taken else (), taken, self.done)

    def end(self) -> None:
        if not self.done:
            raise Refusal(self._faults.cut, "closed before the body was complete")


class CloseReader:
    """A response body that ends when its sender closes; only the transport can tell a clean close from a cut."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def take(self, available: int) -> int:
        """All octets are body."""
        return available

    def feed(self, data: memoryview) -> Fed:
        return Fed((data,) if data else (), len(data), False)

    def end(self) -> None:
        self.done = True


class _At(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()  # the CRLF behind a chunk's data
    TRAILER = auto()
    DONE = auto()


class ChunkedReader:
    """A chunked body (RFC 9112 §7.1), passed on in chunks of the same sizes, or as bare data with `dechunk`.

    Extensions are checked, bounded and dropped. The last chunk and the trailer section are sent together and only when
    the section is complete. `trailers` holds the trailer fields that were passed on.
    """

    __slots__ = ("_at", "_dechunk", "_excess", "_faults", "_held", "_limits", "_remaining", "done", "trailers")

    def __init__(self, limits: Limits, faults: Faults, *, dechunk: bool = False) -> None:
        self._limits = limits
        self._faults = faults
        self._dechunk = dechunk
        self._at = _At.SIZE
        self._remaining = 0
        self._excess = 0
        self._held = b""  # the begin of an incomplete size line, line end or trailer section
        self.done = False
        self.trailers: tuple[tuple[bytes, bytes], ...] = ()

    def feed(self, data: memoryview) -> Fed:
        pieces: list[Piece] = []
        sent = position = 0  # data[sent:position] is verified, canonical and not yet among the pieces
        size = len(data)
        while position < size and self._at is not _At.DONE:
            match self._at:
                case _At.DATA:
                    taken = min(self._remaining, size - position)
                    if self._dechunk:
                        pieces.append(data[position : position + taken])
                    position += taken
                    self._remaining -= taken
                    if self._remaining == 0:
                        self._at = _At.DATA_END
                case _At.SIZE if not self._held and (end := self._skim(data, position)):
                    position = end
                case _At.DATA_END if not self._held and _LINE_END.match(data, position):
                    self._at = _At.SIZE
                    position += 2
                case _:
                    if sent < position and not self._dechunk:
                        pieces.append(data[sent:position])
                    written, position = self._read_slowly(data, position)
                    if written:
                        pieces.append(written)
                    sent = position
        if sent < position and not self._dechunk:
            pieces.append(data[sent:position])
        return Fed(pieces, position, self.done)

    def end(self) -> None:
        if not self.done:
            raise Refusal(self._faults.cut, "closed before the last chunk")

    def _skim(self, data: memoryview, position: int) -> int:
        """The position behind a canonical size line, or behind a run of whole tiny chunks; 0 where there is neither."""
        line = _PLAIN_SIZE.match(data, position)
        if line is None:
            return 0
        size = int(line[1], 16)
        if size <= _TINY and (run := _TINY_CHUNKS.match(data, position)):
            return 0 if self._dechunk else run.end()
        self._open_chunk(size)
        return line.end()

    def _open_chunk(self, size: int) -> None:
        if size >= _MAX_SIZE:
            raise Refusal(self._faults.framing, "a chunk size that no body can have")
        self._remaining = size
        self._at = _At.DATA if size else _At.TRAILER

    def _read_slowly(self, data: memoryview, position: int) -> tuple[bytes, int]:
        """Read what is split over feeds or not canonical: what is sent for it, if complete, and the new position."""
        match self._at:
            case _At.SIZE if not self._held and (run := _PADDED_CHUNKS.match(data, position)):
                return _bare_data(run[0]) if self._dechunk else _PADDED_CHUNK.sub(rb"\1\2", run[0]), run.end()
            case _At.SIZE:
                framing, position = self._read_size(data, position)
            case _At.DATA_END:
                framing, position = self._read_line_end(data, position)
            case _At.TRAILER:
                framing, position = self._read_trailer(data, position)
            case _At.DATA | _At.DONE:
                raise AssertionError("handled by feed")
            case never:
                assert_never(never)
        return b"" if self._dechunk else framing, position

    def _window(self, data: memoryview, position: int, limit: int) -> bytes:
        return self._held + bytes(data[position : position + limit - len(self._held)])

    def _taken(self, position: int, length: int) -> int:
        """The position behind `length` octets of the window; nothing is held any more."""
        position += length - len(self._held)
        self._held = b""
        return position

    def _hold(self, window: bytes, position: int) -> tuple[bytes, int]:
        position += len(window) - len(self._held)
        self._held = window
        return b"", position

    def _read_size(self, data: memoryview, position: int) -> tuple[bytes, int]:
        limit = self._limits.chunk_line_bytes
        window = self._window(data, position, limit)
        line = _ANY_SIZE.match(window)
        if line is None:
            if len(window) >= limit or _PARTIAL_SIZE.fullmatch(window) is None:
                raise Refusal(self._faults.framing, "a malformed or overlong chunk size line")
            return self._hold(window, position)
        self._count_extension(len(line[2]), int(line[1], 16))
        digits = line[1].lstrip(b"0")  # their case stays, so that the output does not depend on the segmentation
        self._open_chunk(int(digits or b"0", 16))
        # The last chunk's line is sent with the trailer section, never before the body is known to be complete.
        return digits + b"\r\n" if digits else b"", self._taken(position, line.end())

    def _count_extension(self, length: int, size: int) -> None:
        """Extensions may not outweigh the data by much: they cost work and carry nothing (CVE-2023-39326)."""
        work = length + _EXTENSION_WORK if length else 0
        self._excess = max(0, self._excess + work - size)
        if self._excess > self._limits.extension_bytes:
            raise Refusal(self._faults.framing, "more chunk extensions than data")

    def _read_line_end(self, data: memoryview, position: int) -> tuple[bytes, int]:
        window = self._window(data, position, 2)
        if window == b"\r":
            return self._hold(window, position)
        if window != b"\r\n":
            raise Refusal(self._faults.framing, "chunk data that is not followed by CRLF")
        self._at = _At.SIZE
        return window, self._taken(position, 2)

    def _read_trailer(self, data: memoryview, position: int) -> tuple[bytes, int]:
        limit = self._limits.trailer_bytes
        window = self._window(data, position, limit)
        end = 0 if window.startswith(b"\r\n") else window.find(b"\r\n\r\n") + 2
        if end == 1:
            if len(window) >= limit:
                raise Refusal(self._faults.too_large, f"a trailer section of more than {limit} octets")
            looks_new = len(self._held) < 4 or window.find(b"\n", len(self._held)) >= 0
            if looks_new and _HOPELESS_TRAILER.search(window):
                raise Refusal(self._faults.malformed, "a malformed trailer section")
            return self._hold(window, position)
        fields = split_fields(window, 0, end, self._limits, self._faults)
        self.trailers, section = format_trailers(fields)
        self._at = _At.DONE
        self.done = True
        return b"0\r\n" + section + b"\r\n", self._taken(position, end + 2)


def _bare_data(run: bytes) -> bytes:
    """The data of a run of tiny chunks."""
    found: list[bytes] = []
    at = 0
    while at < len(run):
        line = run.index(b"\r", at)
        begin, at = line + 2, line + 2 + int(run[at:line], 16)
        found.append(run[begin:at])
        at += 2
    return b"".join(found)


def reader_for(body: Body, limits: Limits, faults: Faults, *, dechunk: bool = False) -> BodyReader | None:
    """The reader of a body; None where there is none."""
    match body:
        case NoBody():
            return None
        case Length(n):
            return LengthReader(n, faults)
        case Chunked():
            return ChunkedReader(limits, faults, dechunk=dechunk)
        case UntilClose():
            return CloseReader()
        case never:
            assert_never(never)
