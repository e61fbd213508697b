"""The hash chain of one log and its checkpoints: how a line is made and taken apart.

A line is a JSON object whose last member is `hash`, the SHA-256 of the previous line's hash (64 hexadecimal digits, the
genesis for the first) followed by the object without that member. Ids count up by one: `<log>-<n>`; the first line of
each file, which names the file before it, has the id `<log>.<segment>`.

Pure.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

FORMAT: Final = 1
GENESIS: Final = "0" * 64
_SEPARATOR: Final = b',"hash":"'
_TAIL: Final = len(_SEPARATOR) + 64 + len(b'"}')


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that the log writes about itself.

    In the first line of a file `previous` is the hash before it and `after` the number of records before it; in that of
    a log `beside` is the newest other log of the directory, so that taking that one away leaves a trace. `head` is
    the hash of the line before this one; with `signature` (base64, Ed25519 over `signed_message`) it vouches for every
    line up to there.
    """

    kind: str  # always "checkpoint"
    event: str = ""
    id: str = ""
    time: str = ""
    format: int = 0
    segment: int = 0
    previous: str = ""
    after: int = 0
    beside: str = ""
    head: str = ""
    key: str = ""
    signature: str = ""
    detail: str = ""
    hash: str = ""


def opening_line(  # noqa: PLR0913  (each is one fact about the line)
    log: str, segment: int, time: str, previous: str, after: int, *, beside: str = ""
) -> tuple[bytes, str]:
    """Return the first line of a file, and its hash."""
    record_id = f"{log}.{segment}"
    opened = Checkpoint(
        kind="checkpoint",
        event="opened",
        id=record_id,
        time=time,
        format=FORMAT,
        segment=segment,
        previous=previous,
        after=after,
        beside=beside,
    )
    return seal(previous, _encode(opened))


def link(previous: str, body: bytes) -> str:
    """Return the hash that chains `body` (a whole JSON object without `hash`) to the line before it."""
    return sha256(previous.encode() + body).hexdigest()


def seal(previous: str, body: bytes) -> tuple[bytes, str]:
    """Return the finished line, newline included, and its hash."""
    digest = link(previous, body)
    return b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode()), digest


def seal_all(previous: str, bodies: Iterable[bytes]) -> tuple[bytes, str]:
    """Return the finished lines of several bodies and the last hash: `seal` for each, without the detours."""
    head = previous.encode()
    parts: list[bytes] = []
    for body in bodies:
        head = sha256(head + body).hexdigest().encode()
        parts += (body[:-1], _SEPARATOR, head, b'"}\n')
    return b"".join(parts), head.decode()


def split_line(line: bytes) -> tuple[bytes, str] | None:
    """Return body and stated hash of a line without its newline; None if it does not end in a hash."""
    if len(line) <= _TAIL or line[-_TAIL : -_TAIL + len(_SEPARATOR)] != _SEPARATOR or not line.endswith(b'"}'):
        return None
    stated = line[-66:-2]
    if stated.strip(b"0123456789abcdef"):
        return None
    return line[:-_TAIL] + b"}", stated.decode()


def signed_message(record_id: str, head: str) -> bytes:
    """What a checkpoint signs: its own id (which holds log and position) and the hash of everything before it."""
    return b"wicketgate audit checkpoint v1\n%b\n%b\n" % (record_id.encode(), head.encode())


_encode = msgspec.json.Encoder().encode
_decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode


def decode_checkpoint(line: bytes) -> Checkpoint:
    """Read a checkpoint line. Raises `msgspec.DecodeError`."""
    return _decode_checkpoint(line)


def record_number(record_id: str) -> int | None:
    """Return n of `<log>-<n>`, None for anything else (the first line of a file has no number)."""
    _, dash, number = record_id.rpartition("-")
    return int(number) if dash and number.isascii() and number.isdigit() and len(number) < 16 else None
