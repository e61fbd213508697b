"""Netlink messages: encode many, send once, check every acknowledgement.

The encoding is pure. `Netlink` is the only part that touches a socket. pyroute2 would do the same, but its import alone
costs more than a whole bridge (see docs/decisions/0001-netlink.md).
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import msgspec

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = 0x200, 0x400, 0x800
NLMSG_ERROR, NLMSG_DONE = 0x2, 0x3
NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF
SOL_NETLINK, NETLINK_EXT_ACK = 270, 11
HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
_RECEIVE = 1 << 16


class NetlinkError(OSError):
    """The kernel refused one message. `errno` is its answer, `what` names the message."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, f"{what}: {os.strerror(code)}")
        self.what = what


class Message(msgspec.Struct, frozen=True):
    """One message: its type, flags beside NLM_F_REQUEST, payload, and words for an error text."""

    kind: int
    flags: int
    payload: bytes
    what: str


def attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded to four bytes (linux/netlink.h, struct nlattr)."""
    length = 4 + len(value)
    return ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nested(kind: int, *children: bytes) -> bytes:
    """Encode an attribute that holds attributes."""
    return attribute(kind | NLA_F_NESTED, b"".join(children))


def text(kind: int, value: str) -> bytes:
    """Encode a NUL-terminated string attribute."""
    return attribute(kind, value.encode() + b"\0")


def encode(messages: Iterable[Message], *, first: int = 1) -> bytes:
    """Encode messages with rising sequence numbers that start at `first`, ready for one sendmsg(2)."""
    parts: list[bytes] = []
    for sequence, message in enumerate(messages, first):
        length = HEADER.size + len(message.payload)
        parts.append(HEADER.pack(length, message.kind, message.flags | NLM_F_REQUEST, sequence, 0))
        parts.append(message.payload + bytes(-length % 4))
    return b"".join(parts)


def decode(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (type, sequence, payload) of each message in one datagram."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _flags, sequence, _port = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > len(data):
            return
        yield kind, sequence, data[offset + HEADER.size : offset + length]
        offset += length + (-length % 4)


def decode_attributes(data: bytes) -> dict[int, bytes]:
    """Read a run of attributes; the last one of a kind wins."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < ATTRIBUTE.size or offset + length > len(data):
            break
        found[kind & NLA_TYPE_MASK] = data[offset + ATTRIBUTE.size : offset + length]
        offset += length + (-length % 4)
    return found


class Netlink:
    """A netlink socket in the network namespace that the calling thread is in when it is made."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, 0))
        # The kernel answers at once from the sending call; a lost answer must not hang us.
        self._socket.settimeout(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def apply(self, messages: list[Message]) -> None:
        """Send all messages at once and raise NetlinkError for the first that the kernel refused."""
        self._socket.send(encode(messages))
        waiting = {number for number, message in enumerate(messages, 1) if message.flags & NLM_F_ACK}
        failure: NetlinkError | None = None
        while waiting:
            for kind, sequence, payload in decode(self._socket.recv(_RECEIVE)):
                if kind != NLMSG_ERROR:
                    continue
                waiting.discard(sequence)
                code = -struct.unpack_from("=i", payload)[0]
                if code and failure is None:
                    failure = NetlinkError(code, messages[sequence - 1].what)
                    if not messages[sequence - 1].flags & NLM_F_ACK:
                        # A refused batch frame ends the batch: nothing else will be acknowledged.
                        waiting.clear()
        if failure is not None:
            raise failure

    def ask(self, message: Message) -> list[bytes]:
        """Send one request and return the payloads of its answers (a dump ends at NLMSG_DONE)."""
        self._socket.send(encode([message]))
        answers: list[bytes] = []
        while True:
            for kind, _sequence, payload in decode(self._socket.recv(_RECEIVE)):
                if kind == NLMSG_DONE:
                    return answers
                if kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", payload)[0]
                    if code:
                        raise NetlinkError(code, message.what)
                    return answers
                answers.append(payload)
