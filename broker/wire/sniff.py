"""Tells from the first bytes of a captured connection which protocol the client speaks.

It only chooses the parser: what it calls TLS or HTTP/1 may still be malformed, and that parser then says so with its
own reason. It must not judge, and it never asks for more than `MAX_NEEDED` bytes, so that no client can hold it
undecided.
"""

import re
from enum import Enum

MAX_NEEDED = 26
"""Bytes after which `sniff` always answers: the longest method it waits for, behind one CRLF."""

_METHOD_MAX = 24  # the longest registered method (UPDATEREDIRECTREF) has 17 characters
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,24}")  # RFC 9110 §5.6.2
_LETTERS = re.compile(rb"[A-Za-z]+")
_H2_PREFACE = b"PRI * HTTP/2.0"  # RFC 9113 §3.4; the rest of the preface tells nothing more
_TLS_CONTENT_TYPES = range(20, 25)  # change_cipher_spec … heartbeat: the ClientHello parser names what is wrong
_SSH = b"SSH-"  # RFC 4253 §4.2; its banner is a token followed by a space, exactly like a request line
_BLANK = b"\t\n\v\f\r"


class Protocol(Enum):
    """What a client speaks, as far as its first bytes tell."""

    TLS = "tls"
    HTTP1 = "http1"
    H2_PREFACE = "h2_preface"
    UNKNOWN = "unknown"


def sniff(first: bytes) -> Protocol | None:
    """Name the protocol that `first` (all bytes received so far) begins; None while more bytes are needed.

    An SSLv2-framed hello counts as TLS: the ClientHello parser refuses it for its version, which says more than
    "unknown". So does a TLS record that is no handshake. A method that never ends counts as HTTP/1 for the same reason.
    """
    if not first:
        return None
    if first[0] in _TLS_CONTENT_TYPES:
        return _sniff_record(first)
    if first[0] & 0x80:
        return _sniff_ssl2(first)
    return _sniff_text(first)


def _sniff_record(first: bytes) -> Protocol | None:
    if len(first) >= 2 and first[1] != 3:
        return Protocol.UNKNOWN
    if len(first) < 3:
        return None
    return Protocol.TLS if first[2] <= 4 else Protocol.UNKNOWN


def _sniff_ssl2(first: bytes) -> Protocol | None:
    """RFC 5246 appendix E.2: two length bytes, msg_type 1, then the version (0.2 for SSLv2 itself, 3.x)."""
    if len(first) >= 3 and first[2] != 1:
        return Protocol.UNKNOWN
    if len(first) < 5:
        return None
    return Protocol.TLS if first[3] == 3 or first[3:5] == b"\x00\x02" else Protocol.UNKNOWN


def _sniff_text(first: bytes) -> Protocol | None:
    if first == b"\r":
        return None
    if first.startswith(_H2_PREFACE):
        return Protocol.H2_PREFACE
    if _H2_PREFACE.startswith(first):
        return None
    if first.startswith(_SSH):
        return Protocol.UNKNOWN
    # RFC 9112 §2.2: one empty line before the request line is tolerated
    return _sniff_method(first, 2 if first.startswith(b"\r\n") else 0)


def _sniff_method(first: bytes, start: int) -> Protocol | None:
    if len(first) == start:
        return None
    token = _TOKEN.match(first, start)
    if token is None:
        return Protocol.UNKNOWN
    if token.end() - start == _METHOD_MAX:
        return Protocol.HTTP1
    if token.end() == len(first):
        return None
    delimiter = first[token.end()]
    # a word cut off by another blank is a mangled request line, which deserves its 400 rather than a reset
    mangled = delimiter in _BLANK and _LETTERS.fullmatch(token[0]) is not None
    return Protocol.HTTP1 if delimiter == 0x20 or mangled else Protocol.UNKNOWN
