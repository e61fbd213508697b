"""Field lists of HTTP/2 requests, responses and trailers: one reading or a refusal, then a new list to send.

Stricter than RFC 9113 §8 on purpose where two readers could differ: one authority, no empty or relative path, no
whitespace around values, no field that only HTTP/1 has. It does not decide whether a request is allowed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.fields import (
    FORGED,
    REQUEST_PREFIXES,
    REQUEST_USES,
    RESPONSE_PREFIXES,
    RESPONSE_USES,
    Use,
    is_second_spelling,
)
from broker.wire.http1.limits import DEFAULT_LIMITS, Limits
from broker.wire.http1.trailers import keep_trailers

type Field = tuple[bytes, bytes]

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")  # lower case only (RFC 9113 §8.2.1)
_VALUE = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_PATH = re.compile(rb"/[!\"$-\[\]-~]*")  # as in HTTP/1: no fragment, no backslash, visible ASCII
_AUTHORITY = re.compile(rb"[!-+\--~]+")
_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
# RFC 9113 §8.2.2: connection-specific fields make a message malformed.
_FORBIDDEN = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_KEPT = frozenset((b"te", b"content-length"))
_REFUSED_METHODS = frozenset((b"TRACE", b"TRACK", b"DEBUG", b"CONNECT"))


def size_of(fields: Iterable[Field]) -> int:
    """Octets of the names and values, as they were before compression."""
    return sum(len(name) + len(value) for name, value in fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request's fields. `authority` is raw; `path` is the raw path with its query; `fields` have no pseudo-field."""

    method: str
    authority: bytes
    path: bytes
    fields: tuple[Field, ...]
    length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response's status, fields and stated length."""

    status: int
    fields: tuple[Field, ...]
    length: int | None


def parse_request(headers: Iterable[Field], limits: Limits = DEFAULT_LIMITS) -> Request:
    """Read a request's field list. Raises `Refusal`."""
    pseudo, fields = _split(headers, _REQUEST_PSEUDO, limits, Reason.BAD_REQUEST)
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if _METHOD.fullmatch(method) is None:
        raise Refusal(Reason.BAD_REQUEST, "no method, or not a token")
    if method.upper() in _REFUSED_METHODS:
        raise Refusal(Reason.METHOD_REFUSED, "this method is never forwarded")
    if pseudo.get(b":scheme") != b"https":
        raise Refusal(Reason.SCHEME_REFUSED, "the scheme inside TLS is https")
    if _PATH.fullmatch(path) is None and not (path == b"*" and method == b"OPTIONS"):
        raise Refusal(Reason.BAD_REQUEST, "the path is missing or malformed")
    if len(path) > limits.target_bytes:
        raise Refusal(Reason.TARGET_TOO_LONG, f"a path of more than {limits.target_bytes} octets")
    te = [value for name, value in fields if name == b"te"]
    if te not in ([], [b"trailers"]):
        raise Refusal(Reason.BAD_REQUEST, "te is trailers or nothing (RFC 9113 §8.2.2)")
    if any(name in FORGED for name, _ in fields):
        raise Refusal(Reason.BAD_FRAMING, "a framing field spelled with an underscore")
    expect = [value for name, value in fields if name == b"expect"]
    if expect not in ([], [b"100-continue"]):
        raise Refusal(Reason.EXPECTATION_FAILED, "an expectation other than 100-continue")
    return Request(
        method=method.decode("ascii"),
        authority=_authority(pseudo, fields),
        path=path,
        fields=fields,
        length=_length(fields, Reason.BAD_FRAMING),
    )


def format_request(request: Request, *, host: bytes) -> list[Field]:
    """The list to send upstream: the judged authority, and nothing hop-by-hop or about the client.

    `te: trailers` is kept: gRPC servers insist on it (RFC 9113 §8.2.2 allows it).
    """
    return [
        (b":method", request.method.encode("ascii")),
        (b":scheme", b"https"),
        (b":authority", host),
        (b":path", request.path),
        *((n, v) for n, v in request.fields if n in _KEPT or _passes_up(n)),
    ]


def parse_response(headers: Iterable[Field], limits: Limits = DEFAULT_LIMITS) -> Response:
    """Read a response's field list. Every refusal is `UPSTREAM_PROTOCOL`."""
    pseudo, fields = _split(headers, frozenset((b":status",)), limits, Reason.UPSTREAM_PROTOCOL)
    status = pseudo.get(b":status", b"")
    if re.fullmatch(rb"[1-9][0-9]{2}", status) is None or status == b"101":
        raise Refusal(Reason.UPSTREAM_PROTOCOL, "a response without a proper status")
    return Response(status=int(status), fields=fields, length=_length(fields, Reason.UPSTREAM_PROTOCOL))


def format_response(response: Response) -> list[Field]:
    """The list to send to the client: no offers of other ports or protocols."""
    kept = ((n, v) for n, v in response.fields if n in {b"content-length", b"trailer"} or _passes_down(n))
    return [(b":status", str(response.status).encode("ascii")), *kept]


def parse_trailers(headers: Iterable[Field], limits: Limits, reason: Reason) -> list[Field]:
    """Read and filter trailers: what would change framing, routing or rights is dropped, as in HTTP/1."""
    _, fields = _split(headers, frozenset(), limits, reason)
    return list(keep_trailers(fields))


def _split(
    headers: Iterable[Field], known: frozenset[bytes], limits: Limits, reason: Reason
) -> tuple[dict[bytes, bytes], tuple[Field, ...]]:
    pseudo: dict[bytes, bytes] = {}
    fields: list[Field] = []
    size = 0
    for name, value in headers:
        size += len(name) + len(value) + 32
        if name.startswith(b":"):
            if name not in known or name in pseudo or fields:
                raise Refusal(reason, "a pseudo-field that is unknown, repeated or out of place")
            pseudo[name] = value
        elif _NAME.fullmatch(name) is None:
            raise Refusal(reason, "a field name that is no lower-case token")
        elif name in _FORBIDDEN:
            raise Refusal(reason, "a connection-specific field")
        else:
            fields.append((name, value))
        if _VALUE.fullmatch(value) is None:
            raise Refusal(reason, "a field value with a control character or surrounding space")
        if len(fields) > limits.fields or size > limits.head_bytes:
            raise Refusal(
                Reason.HEAD_TOO_LARGE if reason is not Reason.UPSTREAM_PROTOCOL else reason, "too many fields"
            )
    return pseudo, tuple(fields)


def _authority(pseudo: dict[bytes, bytes], fields: Sequence[Field]) -> bytes:
    hosts = [value for name, value in fields if name == b"host"]
    found = pseudo.get(b":authority", hosts[0] if hosts else b"")
    if len(hosts) > 1 or any(host.lower() != found.lower() for host in hosts):
        raise Refusal(Reason.BAD_REQUEST, "host and :authority do not agree")
    if _AUTHORITY.fullmatch(found) is None:
        raise Refusal(Reason.MISSING_HOST, "no authority, or a malformed one")
    return found


def _length(fields: Sequence[Field], reason: Reason) -> int | None:
    stated = [value for name, value in fields if name == b"content-length"]
    if not stated:
        return None
    if len(stated) > 1 or re.fullmatch(rb"[0-9]{1,18}", stated[0]) is None:
        raise Refusal(reason, "content-length is not one plain number")
    return int(stated[0])


def _passes_up(name: bytes) -> bool:
    if REQUEST_USES.get(name) is not None or name.startswith(REQUEST_PREFIXES):
        return name == b"expect"
    return b"_" not in name or not is_second_spelling(name)


def _passes_down(name: bytes) -> bool:
    use = RESPONSE_USES.get(name)
    return (use is None or use is Use.TRAILER) and not name.startswith(RESPONSE_PREFIXES)
