"""Field lines: their grammar, what each field means to an intermediary, and the Connection field's options.

The grammar is narrower than RFC 9112 §5 on purpose: no folding, no bare CR or LF, no whitespace around a name, no
control characters. What a second parser could read differently is refused, never repaired.
"""

import re
from enum import Enum, auto

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.faults import Faults, explain_fields
from broker.wire.http1.limits import Limits

type Fields = tuple[tuple[bytes, bytes], ...]
"""Names in their original case and values without surrounding whitespace, in order."""

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"  # RFC 9110 §5.6.2
IS_TOKEN = re.compile(TOKEN + rb"+")
FIELD_LINE = re.compile(rb"(?m)^(" + TOKEN + rb"++):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)\r\n")


class Use(Enum):
    """What an intermediary does with a field that it may not just pass on."""

    HOST = auto()
    LENGTH = auto()
    CODING = auto()
    CONNECTION = auto()
    EXPECT = auto()
    UPGRADE = auto()
    TRAILER = auto()
    DROP = auto()  # hop-by-hop, credentials for a proxy, the client's identity, side doors


FORGED = frozenset((b"content_length", b"transfer_encoding"))  # CGI maps `_` to `-`: second spellings of framing fields
_FRAMING = {b"content-length": Use.LENGTH, b"transfer-encoding": Use.CODING, b"connection": Use.CONNECTION}
# `Proxy` is no field of HTTP, but CGI hands it to programs as HTTP_PROXY (CVE-2016-5385).
_HOP = dict.fromkeys((b"keep-alive", b"te", b"http2-settings", b"proxy"), Use.DROP)  # RFC 9110 §7.6.1, RFC 7540 §3.2.1
# What proxies, delivery networks and application servers say, or believe, about who sent a request.
_IDENTITY = dict.fromkeys(
    b"forwarded via x-real-ip x-client-ip client-ip true-client-ip x-cluster-client-ip cf-connecting-ip "
    b"cf-connecting-ipv6 fastly-client-ip x-azure-clientip x-azure-socketip x-envoy-external-address "
    b"x-appengine-user-ip wl-proxy-client-ip x-original-forwarded-for x-originating-ip x-remote-ip x-remote-addr "
    b"x-proxyuser-ip".split(),
    Use.DROP,
)
# Some servers let these name another method, host or path than the ones that are judged.
_ALIASES = dict.fromkeys(
    (
        b"x-http-method-override",
        b"x-http-method",
        b"x-method-override",
        b"x-host",
        b"x-original-host",
        b"x-http-host-override",
        b"x-original-url",
        b"x-original-uri",
        b"x-rewrite-url",
        b"x-override-url",
        b"x-original-method",
        b"x-envoy-original-path",
        b"x-envoy-original-dst-host",
    ),
    Use.DROP,
)
REQUEST_USES: dict[bytes, Use] = {
    **_FRAMING,
    **_HOP,
    **_IDENTITY,
    **_ALIASES,
    b"host": Use.HOST,
    b"expect": Use.EXPECT,
    b"upgrade": Use.UPGRADE,
    b"trailer": Use.DROP,
}
RESPONSE_USES: dict[bytes, Use] = {
    **_FRAMING,
    **_HOP,
    **dict.fromkeys((b"alt-svc", b"alternate-protocol"), Use.DROP),  # another port or protocol would be a side door
    b"upgrade": Use.UPGRADE,
    b"trailer": Use.TRAILER,
}
REQUEST_WATCHED = frozenset((*_FRAMING, *FORGED, b"host", b"expect", b"upgrade"))
RESPONSE_WATCHED = frozenset((*_FRAMING, b"upgrade"))
_LISTS = frozenset((b"connection", b"upgrade"))
# Credentials for a proxy never leave it, and never come from an origin.
REQUEST_PREFIXES = (b"x-forwarded", b"proxy-")
RESPONSE_PREFIXES = (b"proxy-auth", b"proxy-connection")

# RFC 9110 §7.6.1: "MUST NOT" be listed in Connection. Removing one would change what the recipient reads; with
# Content-Length or Host it would desynchronise it.
PROTECTED = frozenset(
    b"accept accept-encoding authorization cache-control content-encoding content-language content-length "
    b"content-location content-range content-type cookie date etag expect host if-match if-modified-since "
    b"if-none-match if-range if-unmodified-since last-modified location max-forwards origin pragma range referer "
    b"set-cookie transfer-encoding user-agent vary www-authenticate".split()
)
OWN_OPTIONS = frozenset((b"close", b"keep-alive", b"upgrade", b"te", b"http2-settings", b"proxy-connection"))
_NO_OPTIONS: frozenset[bytes] = frozenset()
_USUAL_OPTIONS = {
    spelling: frozenset({spelling.lower()})
    for spelling in (b"keep-alive", b"Keep-Alive", b"close", b"Close", b"upgrade", b"Upgrade")
}


def split_fields(data: bytes | bytearray, start: int, end: int, limits: Limits, faults: Faults) -> Fields:
    """Read the field lines in `data[start:end]`, which is empty or ends with CRLF. Raises `Refusal`.

    One pass: every match holds exactly one LF, at its end, and begins where a line begins. As many matches as there are
    LFs therefore means that the matches cover the whole section.
    """
    lines = data.count(b"\n", start, end)
    if lines > limits.fields:
        raise Refusal(faults.too_large, f"more than {limits.fields} fields")
    pairs = FIELD_LINE.findall(data, start, end)
    if len(pairs) != lines:
        raise explain_fields(bytes(data[start:end]), FIELD_LINE, faults)
    if data.find(b" \r\n", start, end) >= 0 or data.find(b"\t\r\n", start, end) >= 0:
        return tuple((name, value.rstrip(b" \t")) for name, value in pairs)
    return tuple(pairs)


def is_second_spelling(name: bytes) -> bool:
    """Tell whether a name in lower case becomes one of those that do not pass when `_` is read as `-`, as CGI does."""
    hyphened = name.replace(b"_", b"-")
    return hyphened in REQUEST_USES or hyphened.startswith(REQUEST_PREFIXES)


def parse_length(value: bytes, faults: Faults) -> int:
    """Read a Content-Length: digits only, below 2**63. Lists (`5, 5`), signs and other bases are refused."""
    if not value.isdigit() or len(value) > 19 or (length := int(value)) >= 1 << 63:
        raise Refusal(faults.framing, "Content-Length is not one decimal number")
    return length


def parse_options(value: bytes, faults: Faults) -> frozenset[bytes]:
    """Read a Connection field: its options in lower case. Raises `Refusal` for what is not a list of tokens."""
    usual = _USUAL_OPTIONS.get(value)
    if usual is not None:
        return usual
    options = {option for part in value.lower().split(b",") if (option := part.strip(b" \t"))}
    if not all(map(IS_TOKEN.fullmatch, options)):
        raise Refusal(faults.malformed, "Connection is not a list of tokens")
    return frozenset(options)


def collect(fields: Fields, watched: frozenset[bytes], faults: Faults) -> dict[bytes, bytes]:
    """Pick the values that decide how a message is read, by name in lower case.

    Each is allowed once; the lists are joined. Keyed by name and not by `Use`: an Enum hashes in Python code.
    """
    found: dict[bytes, bytes] = {}
    for field in fields:
        name = field[0].lower()
        if name in watched:
            if name not in found:
                found[name] = field[1]
            elif name in _LISTS:
                found[name] += b"," + field[1]
            else:
                raise _repeated(name, faults)
    return found


def _repeated(name: bytes, faults: Faults) -> Refusal:
    match name:
        case b"host":
            return Refusal(faults.malformed, "more than one Host")
        case b"expect":
            return Refusal(Reason.EXPECTATION_FAILED, "more than one Expect")
        case _:
            return Refusal(faults.framing, "a framing field more than once")


def options_of(found: dict[bytes, bytes], faults: Faults) -> frozenset[bytes]:
    """The Connection options among the collected values."""
    value = found.get(b"connection")
    return _NO_OPTIONS if value is None else parse_options(value, faults)
