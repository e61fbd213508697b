"""Authorities: the host and port of a CONNECT target, a Host field or an absolute-form target, as one value.

Decides what an authority is and what its one spelling is. Stricter than RFC 3986 §3.2 on purpose: no userinfo, no
percent-encoding, no empty or zero-padded port, no zone, because parsers disagree about each of them. What cannot be
normalised is refused, never repaired. The module does not decide whether an authority is allowed.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

import msgspec

from broker.policy.addresses import Address, canonical_address, parse_address
from broker.policy.names import HostName, parse_host_name
from broker.policy.reasons import Reason, Refusal

MAX_AUTHORITY: Final = 260  # a name of 253, its trailing dot, a colon and five digits
DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_CACHED: Final = 4096  # entries of at most a few hundred bytes, so that hostile names cannot hold much memory


class Authority(msgspec.Struct, frozen=True):
    """A canonical host and a port (1 to 65535). Equal authorities are the same destination.

    An address is made canonical here, because accepted sockets of a dual-stack listener report IPv4-mapped ones.
    Raises `ValueError` for a port out of range: parsers refuse those before.
    """

    host: HostName | Address
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"no port: {self.port}")
        if isinstance(self.host, IPv6Address):
            msgspec.structs.force_setattr(self, "host", canonical_address(self.host))

    def __str__(self) -> str:
        """`host:port`, an IPv6 address in brackets (RFC 3986 §3.2.2, RFC 5952)."""
        return f"[{self.host}]:{self.port}" if isinstance(self.host, IPv6Address) else f"{self.host}:{self.port}"

    @property
    def is_literal(self) -> bool:
        """Whether the host is an address and not a name."""
        return not isinstance(self.host, str)


def parse_authority(raw: bytes, *, default_port: int | None) -> Authority:
    """Parse `host[:port]`; without `default_port` (CONNECT, RFC 9110 §9.3.6) the port must be there.

    Raises `Refusal`: `BAD_AUTHORITY` for the shape, `BAD_PORT`, `BAD_NAME` and `BAD_ADDRESS` for the parts.
    """
    if len(raw) > MAX_AUTHORITY:  # before the cache, so that it never holds long keys
        raise _bad(f"longer than {MAX_AUTHORITY} bytes")
    return _parse(raw, default_port)


def parse_host(text: str) -> HostName | Address:
    """Parse a host without a port: a name, a strict IPv4 address, or an IPv6 address in brackets.

    Raises `Refusal` as `parse_authority` does.
    """
    if text.startswith("[") and text.endswith("]"):
        return _parse_bracketed(text[1:-1])
    address = parse_address(text)
    if address is None:
        return parse_host_name(text)
    if isinstance(address, IPv6Address):
        raise _bad("an IPv6 address stands in brackets")
    return address


def parse_absolute_form(
    target: bytes, *, schemes: Collection[str] = frozenset({"http"})
) -> tuple[str, Authority, bytes]:
    """Split an absolute-form target (RFC 9112 §3.2.2) into scheme, authority, and path with query.

    The path and query are the bytes that were sent: `/` where there was no path, `/?x` for a bare `?x`. They are not
    judged here beyond what would move the authority's end: control characters, spaces, backslashes and fragments are
    refused in the whole target. Raises `Refusal`: `BAD_REQUEST`, `SCHEME_REFUSED`, or as `parse_authority` does.
    """
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise _explain_target(target)
    scheme = found["scheme"].decode("ascii").lower()
    if scheme not in schemes or scheme not in DEFAULT_PORTS:
        raise Refusal(Reason.SCHEME_REFUSED, "the scheme of the target is not served here")
    authority = parse_authority(found["authority"], default_port=DEFAULT_PORTS[scheme])
    rest: bytes = found["rest"]
    return scheme, authority, rest if rest.startswith(b"/") else b"/" + rest


@lru_cache(maxsize=_CACHED)
def _parse(raw: bytes, default_port: int | None) -> Authority:
    found = _AUTHORITY.fullmatch(raw)
    if found is None:
        raise _explain_authority(raw)
    host = parse_host(found["host"].decode("ascii"))
    digits = found["port"]
    if digits is not None:
        return Authority(host, _parse_port(digits))
    if default_port is None:
        raise Refusal(Reason.BAD_PORT, "the port is missing")
    return Authority(host, default_port)


def _parse_port(digits: bytes) -> int:
    if _PORT.fullmatch(digits) is None or int(digits) > 65535:
        raise Refusal(Reason.BAD_PORT, "a port is a number from 1 to 65535 without leading zeros or signs")
    return int(digits)


def _parse_bracketed(text: str) -> Address:
    if "%" in text:
        raise Refusal(Reason.BAD_ADDRESS, "an address with a zone is only meaningful on its own link")
    address = parse_address(text)
    if not isinstance(address, IPv6Address):
        raise Refusal(Reason.BAD_ADDRESS, "brackets hold an IPv6 address and nothing else")
    return canonical_address(address)


def _explain_authority(raw: bytes) -> Refusal:
    """Name the first thing that is wrong. The input itself is not quoted: userinfo is a secret."""
    for pattern, reason, why in _AUTHORITY_FAULTS:
        if pattern.search(raw):
            return Refusal(reason, why)
    return _bad("not of the form host:port")


def _explain_target(target: bytes) -> Refusal:
    for pattern, reason, why in _TARGET_FAULTS:
        if pattern.search(target):
            return Refusal(reason, why)
    return Refusal(Reason.BAD_REQUEST, "not an absolute-form target (scheme://host/path)")


def _bad(why: str) -> Refusal:
    return Refusal(Reason.BAD_AUTHORITY, why)


# The host's characters are looked at by `parse_host`; here only what separates. No character that any parser takes for
# a delimiter gets through: "@", "/", "\", "?", "#", "%", space and controls.
_AUTHORITY: Final = re.compile(
    rb"(?P<host>\[[^\]\[@/\\?#\x00-\x20\x7f-\xff]*\]|[A-Za-z0-9._-]+)(?::(?P<port>[A-Za-z0-9+._-]*))?"
)
_PORT: Final = re.compile(rb"[1-9][0-9]{0,4}")
_ABSOLUTE: Final = re.compile(
    rb"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\\\x00-\x20\x7f]+)(?P<rest>(?:[/?][^#\\\x00-\x20\x7f]*)?)"
)

_Fault = tuple[re.Pattern[bytes], Reason, str]
_AUTHORITY_FAULTS: Final[tuple[_Fault, ...]] = (
    (re.compile(rb"\A\Z"), Reason.BAD_AUTHORITY, "the authority is empty"),
    (re.compile(rb"[\x00-\x20\x7f]"), Reason.BAD_AUTHORITY, "control character or space in the authority"),
    (re.compile(rb"@"), Reason.BAD_AUTHORITY, "userinfo is not allowed in an authority"),
    (re.compile(rb"\\"), Reason.BAD_AUTHORITY, "backslash in the authority"),
    (re.compile(rb"[/?#]"), Reason.BAD_AUTHORITY, "a URL where only host:port is expected"),
    (re.compile(rb"%"), Reason.BAD_AUTHORITY, "percent-encoding or a zone in the authority"),
    (
        re.compile(rb"[\x80-\xff]"),
        Reason.BAD_NAME,
        "host name: not ASCII; internationalised names are sent as A-labels",
    ),
    (re.compile(rb"\A:"), Reason.BAD_AUTHORITY, "the host is empty"),
    (re.compile(rb"[\[\]]"), Reason.BAD_AUTHORITY, "brackets in the wrong place"),
    (re.compile(rb":.*:"), Reason.BAD_AUTHORITY, "more than one colon; an IPv6 address stands in brackets"),
    (re.compile(rb"[^A-Za-z0-9._:-]"), Reason.BAD_NAME, "host name: character that no host name has"),
)
_TARGET_FAULTS: Final[tuple[_Fault, ...]] = (
    (re.compile(rb"[\x00-\x20\x7f]"), Reason.BAD_REQUEST, "control character or space in the target"),
    (re.compile(rb"\\"), Reason.BAD_REQUEST, "backslash in the target"),
    (re.compile(rb"#"), Reason.BAD_REQUEST, "fragment in the target"),
    (re.compile(rb"\A[A-Za-z][A-Za-z0-9+.-]*://(?:[/?]|\Z)"), Reason.BAD_AUTHORITY, "the authority is empty"),
)
