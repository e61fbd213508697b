"""Just enough DER (X.690) to take certificates apart and to write a trust store. Pure.

Used where a full parser is too strict or too slow: system roots include some that RFC 5280 forbids (a serial number
of zero), and a program start must not wait for one. Nothing is verified here; OpenSSL does that.
"""

from collections.abc import Iterator
from dataclasses import dataclass

INTEGER, BIT_STRING, OCTET_STRING, OBJECT, SEQUENCE, SET = 0x02, 0x03, 0x04, 0x06, 0x30, 0x31
BMP_STRING, UTF8_STRING = 0x1E, 0x0C
VERSION = 0xA0  # [0], explicit


class DerError(ValueError):
    """Bytes that are not the DER expected."""


@dataclass(frozen=True, slots=True)
class Node:
    """One element: its tag, its content and the whole encoding."""

    tag: int
    content: bytes
    whole: bytes


def read_one(data: bytes) -> Node:
    """Read exactly one element. Raises `DerError`, also for bytes that follow it."""
    node, rest = _split(data)
    if rest:
        raise DerError("bytes follow the element")
    return node


def read_all(data: bytes) -> Iterator[Node]:
    """Read the elements that fill `data`."""
    while data:
        node, data = _split(data)
        yield node


def _split(data: bytes) -> tuple[Node, bytes]:
    if len(data) < 2 or data[0] & 0x1F == 0x1F:
        raise DerError("cut or multi-byte tag")
    size, start = data[1], 2
    if size >= 0x80:
        start += size & 0x7F
        if not 0 < size & 0x7F <= 4:
            raise DerError("indefinite or huge length")
        size = int.from_bytes(data[2:start])
    end = start + size
    if end > len(data):
        raise DerError("cut element")
    return Node(data[0], data[start:end], data[:end]), data[end:]


def write(tag: int, *contents: bytes) -> bytes:
    """Encode one element with the contents joined."""
    body = b"".join(contents)
    size = len(body)
    if size < 0x80:
        return bytes((tag, size)) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + body


def write_object(dotted: str) -> bytes:
    """Encode an object identifier (X.690 §8.19)."""
    first, second, *rest = (int(part) for part in dotted.split("."))
    return write(OBJECT, *(_base128(arc) for arc in (first * 40 + second, *rest)))


def _base128(arc: int) -> bytes:
    digits = [arc & 0x7F]
    while arc := arc >> 7:
        digits.append(arc & 0x7F | 0x80)
    return bytes(reversed(digits))


def certificate_fields(certificate: bytes) -> tuple[Node, Node]:
    """The subject and the subjectPublicKeyInfo of a certificate (RFC 5280 §4.1). Raises `DerError`."""
    try:
        fields = list(read_all(next(read_all(read_one(certificate).content)).content))
        subject, key = fields[5:7] if fields[0].tag == VERSION else fields[4:6]
    except (StopIteration, ValueError, IndexError) as error:
        raise DerError("not a certificate") from error
    if (subject.tag, key.tag) != (SEQUENCE, SEQUENCE):
        raise DerError("not a certificate")
    return subject, key
