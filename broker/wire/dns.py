"""Codec of the name server: strict queries in, small answers out (RFC 1035, RFC 6891, RFC 2308).

It knows no names, no addresses and no policy. It reads no compression pointer, so no query can make it loop, and every
answer fits into 512 bytes, so none is ever truncated.
"""

from enum import IntEnum
from ipaddress import IPv4Address
from struct import Struct

import msgspec

from broker.policy.reasons import Reason, Refusal

QUERY_MAX = 4096
"""Bytes of a query: ample for EDNS padding (RFC 7830)."""

_HEADER = Struct(">HHHHHH")
_TYPE_CLASS = Struct(">HH")
_RECORD = Struct(">HHIH")  # type, class, TTL, length of the data
_OPTION = Struct(">HH")
_ADDRESS = Struct(">HHHIH4s")
_SOA = Struct(">BHHIHBBIIIII")

_QR, _TC, _RD, _RA, _CD = 0x8000, 0x0200, 0x0100, 0x0080, 0x0010
_OPT = 41
_OWN_UDP_SIZE = 1232
_TO_QUESTION = 0xC00C  # the pointer to the question's name, right behind the header
_CLASS_IN = 1
# bytes of a label that text may show: visible ASCII without the dot, which would blur the label's end
_VISIBLE = bytes(byte for byte in range(0x21, 0x7F) if byte != 0x2E)


class Rcode(IntEnum):
    """Response codes; BADVERS does not fit the header's four bits and needs an OPT record."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `name` is lower case without a final dot, "" for the root, None where a label holds odd bytes."""

    id: int
    flags: int
    name: str | None
    qtype: int
    qclass: int
    question: bytes
    """Name, type and class as they came: answers repeat the letters' case (0x20), which the client may compare."""
    edns: bool
    edns_version: int
    udp_size: int

    @property
    def recursion_desired(self) -> bool:
        """Whether RD was set; it is copied into the answer."""
        return bool(self.flags & _RD)


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """A query that cannot be read but has a header, and the code to answer with."""

    id: int
    flags: int
    rcode: Rcode


def parse_query(packet: bytes) -> Query | Malformed | None:
    """Read one query. None: drop it, because it has no header or is itself a response (answering could loop).

    Everything else that is not exactly one question with at most one OPT record behind it is Malformed. Never raises.
    """
    if len(packet) < _HEADER.size:
        return None
    ident, flags, questions, answers, authorities, additional = _HEADER.unpack_from(packet)
    if flags & _QR:
        return None
    if flags & 0x7800:
        return Malformed(id=ident, flags=flags, rcode=Rcode.NOTIMP)
    malformed = Malformed(id=ident, flags=flags, rcode=Rcode.FORMERR)
    if flags & _TC or (questions, answers, authorities) != (1, 0, 0) or additional > 1 or len(packet) > QUERY_MAX:
        return malformed
    found = _parse_name(packet)
    if found is None or found[1] + _TYPE_CLASS.size > len(packet):
        return malformed
    name, at = found
    qtype, qclass = _TYPE_CLASS.unpack_from(packet, at)
    at += _TYPE_CLASS.size
    edns = _parse_opt(packet, at) if additional else None
    if edns is None and (additional or at != len(packet)):
        return malformed
    size, version = edns or (512, 0)
    return Query(
        id=ident,
        flags=flags,
        name=name,
        qtype=qtype,
        qclass=qclass,
        question=packet[_HEADER.size : at],
        edns=edns is not None,
        edns_version=version,
        udp_size=max(size, 512),
    )


def _parse_name(packet: bytes) -> tuple[str | None, int] | None:
    """The question's name and the offset behind it. None for a pointer, a reserved label type or a lying length."""
    at = start = _HEADER.size
    labels: list[bytes] = []
    while at < len(packet):
        size = packet[at]
        at += 1
        if not size:
            return _format_name(labels), at
        label = packet[at : at + size]
        at += size
        if size > 63 or at - start > 254:  # RFC 1035 §2.3.4: 255 octets, with the final zero
            return None
        labels.append(label)
    return None


def _format_name(labels: list[bytes]) -> str | None:
    name = b".".join(labels)
    if name.translate(None, _VISIBLE) != b"." * (len(labels) - 1):
        return None
    return name.decode("ascii").lower()


def _parse_opt(packet: bytes, at: int) -> tuple[int, int] | None:
    """(UDP size, EDNS version) of an OPT record that fills the packet from `at` on; None when it is anything else."""
    if at + 1 + _RECORD.size > len(packet) or packet[at]:  # RFC 6891 §6.1.2: its owner is the root
        return None
    kind, size, fields, length = _RECORD.unpack_from(packet, at + 1)
    at += 1 + _RECORD.size
    if kind != _OPT or at + length != len(packet):
        return None
    while at < len(packet):
        if at + _OPTION.size > len(packet):
            return None
        at += _OPTION.size + _OPTION.unpack_from(packet, at)[1]
    return (size, fields >> 16 & 0xFF) if at == len(packet) else None


def answer_address(query: Query, address: IPv4Address, ttl: int) -> bytes:
    """One A record for the question; `ttl` in seconds."""
    record = _ADDRESS.pack(_TO_QUESTION, 1, _CLASS_IN, ttl, 4, address.packed)
    return _header(query, Rcode.NOERROR, answers=1) + query.question + record + _opt(query, Rcode.NOERROR)


def answer_empty(query: Query, ttl: int = 0) -> bytes:
    """NODATA: the name exists, this type does not. Clients may keep that for `ttl` seconds."""
    return _negative(query, Rcode.NOERROR, ttl)


def answer_error(query: Query | Malformed, rcode: Rcode, ttl: int = 0) -> bytes:
    """An error, with the question where it could be read. NXDOMAIN may be kept for `ttl` seconds, 0: not at all."""
    if isinstance(query, Malformed):
        return _HEADER.pack(query.id, _response_flags(query.flags, rcode), 0, 0, 0, 0)
    if rcode is Rcode.NXDOMAIN:
        return _negative(query, rcode, ttl)
    return _header(query, rcode) + query.question + _opt(query, rcode)


def _negative(query: Query, rcode: Rcode, ttl: int) -> bytes:
    """With an SOA record, whose owner is the root: without one caches choose a time of their own (RFC 2308 §5)."""
    soa = _SOA.pack(0, 6, _CLASS_IN, ttl, 22, 0, 0, 1, ttl, ttl, ttl, ttl)
    return _header(query, rcode, authorities=1) + query.question + soa + _opt(query, rcode)


def _header(query: Query, rcode: Rcode, *, answers: int = 0, authorities: int = 0) -> bytes:
    return _HEADER.pack(query.id, _response_flags(query.flags, rcode), 1, answers, authorities, query.edns)


def _response_flags(flags: int, rcode: Rcode) -> int:
    return _QR | flags & (0x7800 | _RD | _CD) | _RA | rcode & 0xF


def _opt(query: Query, rcode: Rcode) -> bytes:
    """RFC 6891 §6.1.1: a query with an OPT record gets one back; ours is version 0 and has no options."""
    return b"\0" + _RECORD.pack(_OPT, _OWN_UDP_SIZE, rcode >> 4 << 24, 0) if query.edns else b""


def take_frame(data: bytes) -> tuple[bytes, int] | None:
    """First message of a TCP stream and the bytes it takes up (RFC 1035 §4.2.2); None while more bytes are needed.

    Raises Refusal (BAD_FRAMING) for a length that no query has: the stream cannot be read on.
    """
    if len(data) < 2:
        return None
    size = data[0] << 8 | data[1]
    if not _HEADER.size <= size <= QUERY_MAX:
        raise Refusal(Reason.BAD_FRAMING, f"a DNS message over TCP says it has {size} bytes")
    return (bytes(data[2 : 2 + size]), 2 + size) if len(data) >= 2 + size else None


def format_frame(message: bytes) -> bytes:
    """The message with its TCP length in front."""
    return len(message).to_bytes(2) + message
