"""Reads a TLS ClientHello out of the raw bytes a client has sent so far.

It decides whether those bytes are one well-formed hello of TLS 1.2 or newer, and which name, ALPN protocols and
versions it offers. Stricter than a TLS server on purpose: whatever two stacks could read differently (a length that
lies, a repeated extension, a second name) is refused, because what is judged here is what the upstream will read.
It must not do I/O, keep state between calls or choose a rule.
"""

from struct import Struct, unpack_from
from typing import NoReturn

import msgspec

from broker.policy.names import HostName, parse_host_name
from broker.policy.reasons import Reason, Refusal
from broker.wire.records import Buffer, read_handshake

LIMIT = 16384
"""Default bound of the hello in bytes, its four-byte handshake header included."""

TLS12 = 0x0303
TLS13 = 0x0304

_SERVER_NAME = 0  # RFC 6066 §3
_ALPN = 16  # RFC 7301
PRE_SHARED_KEY = 41
_EARLY_DATA = 42
_SUPPORTED_VERSIONS = 43  # RFC 8446 §4.2.1
KEY_SHARE = 51  # RFC 8446 §4.2.8
_X25519 = 29
_ECH = 0xFE0D  # RFC 9849
_ENCRYPTED_SNI = 0xFFCE  # its forerunner
_HEADER = 4  # msg_type, uint24 length
_RANDOM_END = _HEADER + 2 + 32

_uint16 = Struct(">H").unpack_from
_two_uint16 = Struct(">HH").unpack_from


class ClientHello(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a client offers. `ech` also holds for GREASE ECH, which cannot be told from the real one (RFC 9849 §6.2).

    A struct, because one is made for every TLS connection.
    """

    server_name: HostName | None
    alpn: tuple[bytes, ...]
    versions: tuple[int, ...]
    """As offered, in the client's order, GREASE values included; without supported_versions the one legacy version."""
    ech: bool
    early_data: bool
    x25519: bool
    """Whether a share for X25519 came along. It chooses between groups that are all good, so it is not judged."""
    length: int
    """Raw bytes of the hello with its record headers: what follows in the buffer is not part of it."""


def parse_client_hello(data: Buffer, *, limit: int = LIMIT) -> ClientHello | None:
    """Parse everything received so far; None while more bytes are needed.

    Raises Refusal with NOT_TLS, BAD_CLIENT_HELLO, CLIENT_HELLO_TOO_LARGE, TLS_VERSION or BAD_SNI as soon as the bytes
    at hand show it; more bytes never turn a refusal into a hello. RFC 8446 §4.1.2, RFC 5246 §7.4.1.2.
    """
    message, length = read_handshake(data, limit)
    if message is None:
        return None
    legacy, extensions = _parse_message(message)
    versions = _parse_versions(legacy, extensions)
    names = extensions.get(_SERVER_NAME)
    alpn = extensions.get(_ALPN)
    early_data = extensions.get(_EARLY_DATA)
    if early_data:
        _malformed("early_data is not empty")
    return ClientHello(
        server_name=None if names is None else _parse_server_name(names),
        alpn=() if alpn is None else _parse_alpn(alpn),
        versions=versions,
        ech=_ECH in extensions or _ENCRYPTED_SNI in extensions,
        early_data=early_data is not None,
        x25519=_has_share(extensions.get(KEY_SHARE, b""), _X25519),
        length=length,
    )


def _parse_message(message: bytes) -> tuple[int, dict[int, bytes]]:
    """(legacy_version, extensions by type) of a hello that has its smallest size at least."""
    end = len(message)
    legacy: int = _uint16(message, _HEADER)[0]
    if legacy >> 8 != 3:
        _malformed("legacy_version is not 3.x")
    session = message[_RANDOM_END]
    at = _RANDOM_END + 1 + session
    if session > 32 or at + 2 > end:
        _malformed("session id does not fit")
    ciphers: int = _uint16(message, at)[0]
    at += 2 + ciphers
    if ciphers < 2 or ciphers & 1 or at + 1 > end:
        _malformed("cipher suites do not fit")
    methods = message[at + 1 : at + 1 + message[at]]
    at += 1 + message[at]
    if 0 not in methods or at > end:
        _malformed("compression methods do not fit or lack null")
    if at == end:
        return legacy, {}  # RFC 5246 §7.4.1.2: the extensions block may be absent
    if at + 2 > end or _uint16(message, at)[0] != end - at - 2:
        _malformed("extensions block does not end with the hello")
    return legacy, _parse_extensions(message, at + 2)


def _parse_extensions(message: bytes, at: int) -> dict[int, bytes]:
    end = len(message)
    found: dict[int, bytes] = {}
    while at + 4 <= end:
        kind, size = _two_uint16(message, at)
        body = at + 4
        at = body + size
        if kind in found:  # RFC 8446 §4.2: at most one of a type, unknown and GREASE types too
            _malformed("extension appears twice")
        found[kind] = message[body:at]
    if at != end:
        _malformed("the last extension does not end with its block")
    if PRE_SHARED_KEY in found and kind != PRE_SHARED_KEY:  # RFC 8446 §4.2.11
        _malformed("pre_shared_key is not the last extension")
    return found


def _parse_versions(legacy: int, extensions: dict[int, bytes]) -> tuple[int, ...]:
    listed = extensions.get(_SUPPORTED_VERSIONS)
    if listed is None:
        # a legacy version above 1.2 is read as 1.2 (RFC 8446 §4.2.1: it never negotiates 1.3)
        versions: tuple[int, ...] = (min(legacy, TLS12),)
    else:
        if len(listed) < 3 or listed[0] != len(listed) - 1 or listed[0] & 1:
            _malformed("supported_versions lies about its length")
        versions = unpack_from(f">{len(listed) >> 1}H", listed, 1)
    if TLS13 not in versions and TLS12 not in versions:
        raise Refusal(Reason.TLS_VERSION, "the client offers nothing from TLS 1.2 on")
    return versions


def _has_share(body: bytes, group: int) -> bool:
    """Whether the list of key shares, behind its length, has one for the group."""
    at = 2
    while at + 4 <= len(body):
        kind, size = _two_uint16(body, at)
        if kind == group:
            return True
        at += 4 + size
    return False


def _parse_alpn(body: bytes) -> tuple[bytes, ...]:
    """RFC 7301 §3.1: a list of non-empty names of at most 255 bytes."""
    if len(body) < 4 or _uint16(body)[0] != len(body) - 2:
        _malformed("ALPN lies about its length")
    names: list[bytes] = []
    at = 2
    while at < len(body):
        end = at + 1 + body[at]
        if end == at + 1 or end > len(body):
            _malformed("ALPN name does not fit")
        names.append(body[at + 1 : end])
        at = end
    return tuple(names)


def _parse_server_name(body: bytes) -> HostName:
    """RFC 6066 §3: exactly one entry, of type host_name. No other type was ever defined, and servers differ on it."""
    if len(body) < 5 or _uint16(body)[0] != len(body) - 2:
        _malformed("server_name lies about its length")
    if body[2] != 0:
        _malformed("server_name holds another type than host_name")
    size: int = _uint16(body, 3)[0]
    if size != len(body) - 5:
        _malformed("server_name does not hold exactly one name")
    return _parse_sni(body[5:])


def _parse_sni(raw: bytes) -> HostName:
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise Refusal(Reason.BAD_SNI, "the server name is not ASCII") from None
    if not text or text.endswith("."):
        raise Refusal(Reason.BAD_SNI, "the server name is empty or ends with a dot")
    try:
        return parse_host_name(text)
    except Refusal as refusal:
        raise Refusal(Reason.BAD_SNI, f"the server name is not a host name: {refusal.detail}") from None


def _malformed(detail: str) -> NoReturn:
    raise Refusal(Reason.BAD_CLIENT_HELLO, detail)
