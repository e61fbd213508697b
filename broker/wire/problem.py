"""Builds the one shape of a denial or failure that a client can read: an RFC 9457 problem document over HTTP/1.1.

It says nothing that the payload must not know: no address of the host, no other session, no rule it has no part in
beyond what the caller passes. All text is escaped, so that no answer can act on a terminal or a browser.
"""

from collections.abc import Sequence
from http import HTTPStatus
from json import JSONEncoder

from broker.policy.reasons import Family, Reason
from broker.wire.sentences import PROXY_STATUS, SENTENCES

REACHABLE_MAX = 20
DETAIL_MAX = 500
"""Characters; a longer detail is cut, and so are the other texts."""

_encode = JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
# json escapes what is below 0x20 or above 0x7e but DEL; the rest keeps a body inert where a browser sniffs it
_INERT = {0x7F: "\\u007f", ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_EXTRA_FIELDS = {
    Reason.METHOD_REFUSED: ("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),  # RFC 9110 §15.5.6 wants one
    Reason.RATE_LIMITED: ("Retry-After", "1"),  # RFC 6585 §4
    Reason.TOO_MANY_CONNECTIONS: ("Retry-After", "1"),
}


def problem(  # noqa: PLR0913  (the fields of the document)
    reason: Reason,
    *,
    detail: str,
    rule: str | None,
    reachable: Sequence[str],
    record: str | None,
    status: int | None = None,
) -> bytes:
    """The JSON body. `reachable`: what the session may reach, of which the first 20 are shown and all are counted.

    `record` is the id of the audit record, `rule` the rule that decided. Raises ValueError for a reason that is neither
    a denial nor a failure. RFC 9457 §3.1.
    """
    document = {
        "type": f"urn:wicketgate:reason:{reason}",
        "title": SENTENCES[_checked(reason)],
        "status": reason.status if status is None else status,
        "detail": _clean(detail),
        "reason": str(reason),
        "rule": None if rule is None else _clean(rule),
        "reachable": [_clean(text) for text in reachable[:REACHABLE_MAX]],
        "reachable_total": len(reachable),
        "record": None if record is None else _clean(record),
    }
    return (_encode(document).translate(_INERT) + "\n").encode("ascii")


def http_response(  # noqa: PLR0913  (the same, and the connection's)
    reason: Reason,
    *,
    detail: str,
    rule: str | None,
    reachable: Sequence[str],
    record: str | None,
    status: int | None = None,
    keep_alive: bool = False,
    head: bool = False,
    date: str | None = None,
) -> bytes:
    """The whole HTTP/1.1 response. `head`: the request was a HEAD, so the length is told and the body left out.

    `date` is an IMF-fixdate when the caller has a clock. Proxy-Status (RFC 9209) carries the reason also where no body
    is shown. Raises ValueError as `problem` does, and for a status that is no error.
    """
    code = HTTPStatus(_checked(reason).status if status is None else status)
    if code < 400:
        raise ValueError(f"{code} is no error status")
    body = problem(reason, detail=detail, rule=rule, reachable=reachable, record=record, status=code)
    lines = (
        f"HTTP/1.1 {code} {code.phrase}",
        *(() if date is None else (f"Date: {date}",)),
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in problem_fields(reason)),
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        "\r\n",
    )
    return "\r\n".join(lines).encode("ascii") + (b"" if head else body)


def problem_fields(reason: Reason) -> tuple[tuple[str, str], ...]:
    """What the head says beside status, length and connection, whatever the version of HTTP."""
    extra = _EXTRA_FIELDS.get(reason)
    return (
        ("Content-Type", "application/problem+json"),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Proxy-Status", f'wicketgate; error={_proxy_status(reason)}; details="{reason}"'),
        *(() if extra is None else (extra,)),
    )


def _proxy_status(reason: Reason) -> str:
    denied = reason.family is Family.DENY
    return PROXY_STATUS.get(reason, "http_request_denied" if denied else "proxy_internal_error")


def _checked(reason: Reason) -> Reason:
    if reason.family not in (Family.DENY, Family.FAILURE):
        raise ValueError(f"{reason} is neither a denial nor a failure")
    return reason


def _clean(text: str) -> str:
    """Cut, and turn lone surrogates (raw bytes that were decoded leniently) into visible escapes: JSON forbids them."""
    return text[:DETAIL_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
