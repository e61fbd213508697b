"""Which reason code a fault gets, by the side that sent the message, and what to say about a malformed line.

Accepting is done elsewhere, by one pattern for each kind of line. This module only names what is wrong with a line that
was not accepted: every path through it ends in a `Refusal`, so a gap here can blur a message but can never let one in.
Details are fixed phrases: no octet of the peer reaches them.
"""

import re

import msgspec

from broker.policy.reasons import Reason, Refusal

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The codes of one side: who sent what cannot be accepted."""

    malformed: Reason
    framing: Reason
    too_large: Reason
    cut: Reason  # the side closed in the middle of a message


CLIENT = Faults(
    malformed=Reason.BAD_REQUEST,
    framing=Reason.BAD_FRAMING,
    too_large=Reason.HEAD_TOO_LARGE,
    cut=Reason.CLIENT_CLOSED,
)
UPSTREAM = Faults(
    malformed=Reason.UPSTREAM_PROTOCOL,
    framing=Reason.UPSTREAM_PROTOCOL,
    too_large=Reason.UPSTREAM_PROTOCOL,
    cut=Reason.UPSTREAM_CLOSED,
)

# The first row that matches names the fault.
_FIELD_FAULTS = tuple(
    (re.compile(pattern, re.DOTALL), phrase)
    for pattern, phrase in (
        (rb"[ \t]", "a folded field line, or whitespace before the first field"),
        (rb"[^\n]*[^\r\n]\n|\n", "a line that ends with a bare LF"),
        (rb"[^\r]*\r[^\n]", "a bare CR"),
        (rb".*\x00", "a NUL octet in a field"),
        (rb":", "a field without a name"),
        (_TOKEN + rb"+[ \t]+:", "whitespace between a field's name and its colon"),
        (_TOKEN + rb"*[\x80-\xff]", "a field name that is not ASCII"),
        (rb"[^:]*\r\n$", "a field line without a colon"),
        (_TOKEN + rb"+:", "a control character in a field's value"),
        (rb"", "an illegal character in a field's name"),
    )
)
_REQUEST_LINE_FAULTS = tuple(
    (re.compile(pattern, re.DOTALL), reason, phrase)
    for pattern, reason, phrase in (
        (rb"\r\n", Reason.BAD_REQUEST, "more than one empty line before the request"),
        (rb"PRI \* HTTP/2\.0\r\n", Reason.BAD_VERSION, "HTTP/2 without negotiation"),
        (rb"[^\n]*[^\r\n]\n|\n", Reason.BAD_REQUEST, "a request line that ends with a bare LF"),
        (rb"[^\r]*\r[^\n]", Reason.BAD_REQUEST, "a bare CR in the request line"),
        (rb"[^\r\n]*[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", Reason.BAD_REQUEST, "a control character in the request line"),
        (
            _TOKEN + rb"{1,32} [^ ]+ HTTP/[0-9]\.[0-9]\r\n(?<!HTTP/1\.[01]\r\n)",
            Reason.BAD_VERSION,
            "not HTTP/1.0 or 1.1",
        ),
        (_TOKEN + rb"{33}", Reason.BAD_REQUEST, "a method of more than 32 characters"),
        (_TOKEN + rb"{1,32} [^ ]+\r\n", Reason.BAD_REQUEST, "a request line without a version"),
        (
            _TOKEN + rb"{1,32} [^ ]+ HTTP/1\.[01]\r\n",
            Reason.BAD_REQUEST,
            "a character that a request target must encode",
        ),
        (_TOKEN + rb"{1,32} ", Reason.BAD_REQUEST, "a request line that is not method, target and version"),
        (rb"", Reason.BAD_REQUEST, "a request line without a method"),
    )
)
_PARTIAL = re.compile(
    rb"\r?|(?:\r\n)?(?:"
    + (_TOKEN + rb"{0,32}|")
    + (_TOKEN + rb"{1,32} [!\"$-\[\]-~]*+|")
    + (_TOKEN + rb"{1,32} [!\"$-\[\]-~]++ ([A-Z0-9/.]{0,8}\r?))")
)


def explain_request_line(head: bytes) -> Refusal:
    """Name the fault of a request line that was not accepted; `head` begins with it."""
    line = head.removeprefix(b"\r\n")
    line = line[: line.find(b"\n") + 1] or line
    for pattern, reason, phrase in _REQUEST_LINE_FAULTS:
        if pattern.match(line):
            return Refusal(reason, phrase)
    raise AssertionError("the last row matches everything")


def explain_fields(section: bytes, accepted: re.Pattern[bytes], faults: Faults) -> Refusal:
    """Name the fault of the first line of `section` that `accepted` does not match whole."""
    for line in section.split(b"\n")[:-1]:
        whole = line + b"\n"
        if accepted.fullmatch(whole) is None:
            return Refusal(faults.malformed, next(phrase for pattern, phrase in _FIELD_FAULTS if pattern.match(whole)))
    return Refusal(faults.malformed, "a malformed field section")


def explain_partial_request(start: bytes) -> None:
    """Raise if `start`, which holds no whole line yet, cannot become a request line."""
    partial = _PARTIAL.fullmatch(start)
    if partial is None:
        raise explain_request_line(start)
    version = partial[1]
    if version and not any(whole.startswith(version) for whole in (b"HTTP/1.1\r", b"HTTP/1.0\r")):
        raise Refusal(Reason.BAD_VERSION, "not HTTP/1.0 or 1.1")
