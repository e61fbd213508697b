"""Puts the first TLS handshake message together from plaintext records.

Any split is accepted: records of one byte, bytes that arrive one at a time. What the declared lengths already show to
be wrong is refused before the bytes arrive. It must not look into the hello further than its type and length.
"""

from typing import NoReturn

from broker.policy.reasons import Reason, Refusal

type Buffer = bytes | bytearray | memoryview

RAW_FACTOR = 2
"""Raw bytes that a hello may use per byte of its limit: bounds the walk over tiny records."""

_RECORD_HEADER = 5
_RECORD_MAX = 16384  # RFC 8446 §5.1
_MESSAGE_HEADER = 4
_FIRST_HEADERS = _RECORD_HEADER + _MESSAGE_HEADER
_HELLO_MIN = _MESSAGE_HEADER + 2 + 32 + 1 + 4 + 2  # version, random, empty session, one suite, one compression method
_HANDSHAKE = 22
_CONTENT_TYPES = range(20, 25)
_CLIENT_HELLO = 1


def read_handshake(data: Buffer, limit: int) -> tuple[bytes | None, int]:
    """(the whole first handshake message, raw bytes used), or (None, raw bytes that are missing at the least).

    `data` is everything received so far; nothing after the message is looked at. The message has at most `limit` bytes,
    in at most `RAW_FACTOR * limit` raw ones. Raises Refusal: NOT_TLS, TLS_VERSION (an SSLv2 hello), BAD_CLIENT_HELLO,
    CLIENT_HELLO_TOO_LARGE.
    """
    have = len(data)
    if have >= _FIRST_HEADERS:
        size = _record_size(data, 0)
        end = _RECORD_HEADER + size
        if size > _MESSAGE_HEADER and size == _message_size(data[_RECORD_HEADER:_FIRST_HEADERS], limit):
            # the ordinary hello, one record: no need to walk
            return (bytes(data[_RECORD_HEADER:end]), end) if have >= end else (None, end - have)
    return _join(data, limit)


def bytes_missing(data: Buffer, *, limit: int) -> int:
    """How many raw bytes, at the least, must follow `data` before its hello can be whole; 0 when it is.

    Who waits for them before parsing again does some fifty parses at most for a hello cut into one-byte records that
    arrive byte by byte, instead of one a byte. Raises as `read_handshake` does.
    """
    message, count = read_handshake(data, limit)
    return 0 if message is not None else count


def _join(data: Buffer, limit: int) -> tuple[bytes | None, int]:
    """Walk the records; at the loop's head `at` is a record boundary and `message` holds every fragment before it."""
    have = len(data)
    at = total = 0  # total: the message's size, 0 until its header is in
    message = bytearray()
    while True:
        if have - at < _RECORD_HEADER:
            if have > at:
                _check_type(data[at], at)
            return None, _RECORD_HEADER - (have - at) + max((total or _HELLO_MIN) - len(message), 1)
        size = _record_size(data, at)
        body, at = at + _RECORD_HEADER, at + _RECORD_HEADER + size
        if at > RAW_FACTOR * limit:
            raise Refusal(Reason.CLIENT_HELLO_TOO_LARGE, "the hello spreads over too many records")
        message += data[body:at]
        announced = len(message) + max(at - have, 0)
        total = total or _message_size(message, limit)
        if total and announced > total:
            # RFC 8446 §5.1: nothing a client may send under the same keys follows its hello
            _malformed("bytes follow the hello in its record")
        if at > have:
            return None, at - have + max((total or _HELLO_MIN) - announced, 0)
        if len(message) == total:
            return bytes(message), at


def _record_size(data: Buffer, at: int) -> int:
    """Judge the record header at `at`, of which all five bytes are there: payload length."""
    _check_type(data[at], at)
    if data[at] & 0x80:
        _refuse_ssl2(data)
    if data[at + 1] != 3 or data[at + 2] > 4:
        raise Refusal(Reason.BAD_CLIENT_HELLO if at else Reason.NOT_TLS, "the record version is not 3.0 to 3.4")
    if data[at] != _HANDSHAKE:  # an alert or a change of cipher, before there is anything to alert to or to change
        _malformed("a record of another type comes before the hello")
    if data[at + 2] != data[2]:
        _malformed("the records of one hello differ in version")
    size: int = data[at + 3] << 8 | data[at + 4]
    if not size:  # RFC 8446 §5.1: handshake fragments are never empty; a client could send them for ever
        _malformed("a record is empty")
    if size > _RECORD_MAX:
        _malformed("a record is longer than 2^14 bytes")
    return size


def _check_type(kind: int, at: int) -> None:
    """Judge the first byte of a record alone. Another type in the first record waits for the version behind it."""
    if kind == _HANDSHAKE:
        return
    if at:
        _malformed("a record of another type comes before the end of the hello")
    if kind not in _CONTENT_TYPES and not kind & 0x80:
        raise Refusal(Reason.NOT_TLS, "the first byte starts no TLS record")


def _refuse_ssl2(data: Buffer) -> NoReturn:
    """RFC 5246 appendix E.2: length with the top bit set, msg_type 1, version 0.2 or 3.x."""
    if data[2] == _CLIENT_HELLO and (data[3] == 3 or bytes(data[3:5]) == b"\x00\x02"):
        raise Refusal(Reason.TLS_VERSION, "an SSLv2 hello")
    raise Refusal(Reason.NOT_TLS, "the first byte starts no TLS record")


def _message_size(message: Buffer, limit: int) -> int:
    """Size by the handshake header that `message` starts with; 0 while that is cut off."""
    if len(message) and message[0] != _CLIENT_HELLO:
        _malformed("the first handshake message is no ClientHello")
    if len(message) < _MESSAGE_HEADER:
        return 0
    total: int = _MESSAGE_HEADER + (message[1] << 16 | message[2] << 8 | message[3])
    if total > limit:
        raise Refusal(Reason.CLIENT_HELLO_TOO_LARGE, f"the hello announces {total} bytes, the limit is {limit}")
    if total < _HELLO_MIN:
        _malformed("the hello is too short")
    return total


def _malformed(detail: str) -> NoReturn:
    raise Refusal(Reason.BAD_CLIENT_HELLO, detail)
