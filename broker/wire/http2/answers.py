"""The one shape of a denial or failure, as an HTTP/2 answer: the same document and fields as over HTTP/1.1. Pure.

A gRPC client shows no body, so it is answered with a status and message of its own protocol instead.
"""

from collections.abc import Sequence
from urllib.parse import quote

from broker.policy.reasons import Family, Reason
from broker.wire.http2.fields import Field
from broker.wire.problem import problem, problem_fields
from broker.wire.sentences import SENTENCES

_GRPC = b"application/grpc"
# Status codes of gRPC ("Status codes and their use in gRPC"): what a client may do about it.
_PERMISSION_DENIED, _RESOURCE_EXHAUSTED, _INTERNAL, _UNAVAILABLE = 7, 8, 13, 14
_GRPC_STATUS = {
    Reason.RATE_LIMITED: _RESOURCE_EXHAUSTED,
    Reason.INTERNAL: _INTERNAL,
}


def is_grpc(fields: Sequence[Field]) -> bool:
    """Whether a request is a gRPC call (gRPC over HTTP/2, "Requests": `content-type`)."""
    return any(name == b"content-type" and value.startswith(_GRPC) for name, value in fields)


def format_answer(  # noqa: PLR0913  (the fields of the document)
    reason: Reason,
    *,
    detail: str,
    rule: str | None,
    reachable: Sequence[str],
    record: str | None,
    grpc: bool,
) -> tuple[list[Field], bytes]:
    """The field list and the body of a refusal; for gRPC a trailers-only response, which has no body."""
    status = (b":status", str(reason.status or 403).encode("ascii"))
    if grpc:
        code = _GRPC_STATUS.get(reason, _PERMISSION_DENIED if reason.family is Family.DENY else _UNAVAILABLE)
        text = f"{SENTENCES[reason]} ({reason}: {detail}; record {record or 'none'})"
        return [
            status,
            (b"content-type", _GRPC),
            (b"grpc-status", str(code).encode("ascii")),
            # Percent-encoded, as the protocol has it; nothing of it can end the value.
            (b"grpc-message", quote(text, safe=" !\"#$&'()*+,/:;<=>?@[]^_`{|}~").encode("ascii")),
        ], b""
    body = problem(reason, detail=detail, rule=rule, reachable=reachable, record=record)
    return [
        status,
        (b"content-length", str(len(body)).encode("ascii")),
        *((name.lower().encode("ascii"), value.encode("ascii")) for name, value in problem_fields(reason)),
    ], body
