"""From a request head to the question that is put to the policy. Pure.

The authority that a request names must be the one that the connection was opened for. An explicit proxy connection is
opened for none: there each request names its own, in absolute-form or with CONNECT.
"""

import binascii
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from broker.policy.authority import Authority
from broker.policy.facts import Facts, Stage
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.rewrite import DEFAULT_PORTS, Scheme
from broker.wire.http1.targets import AbsoluteForm, AuthorityForm, classify_target, request_authority

# RFC 8484 and its drafts, RFC 9230, and the JSON forms that public resolvers have.
_DNS_TYPES = frozenset(
    b"application/dns-message application/oblivious-dns-message application/dns-json application/dns+json "
    b"application/dns-udpwireformat message/dns".split()
)
_NOT_THIS_WAY: Final = "names are answered by the broker, not by way of a request"
# A header of twelve bytes (RFC 1035 §4.1.1) and the shortest question: the root, a type, a class.
_LEAST_DNS: Final = 17
_BASE64: Final = re.compile(rb"[A-Za-z0-9_+/-]+={0,2}")


class Question(msgspec.Struct, frozen=True, gc=False):
    """A request that can be judged. `target` is the raw path with its query, as it will be sent on."""

    facts: Facts
    target: bytes
    connect: bool = False


def judged_question(facts: Facts, target: bytes, fields: Iterable[tuple[bytes, bytes]]) -> Question:
    """What both protocols refuse in a request that could otherwise be judged. Raises Refusal."""
    for name, value in fields:
        # An allowed host that resolves names for the sandbox is a way around the name server (RFC 8484).
        if b"dns" in (lower := value.lower()) and name.lower() in {b"accept", b"content-type"} and _names_dns(lower):
            raise Refusal(Reason.DNS_OVER_HTTPS, _NOT_THIS_WAY)
    # Its GET form needs no field: the message stands in the query (RFC 8484 §4.1.1).
    if (query := facts.query) and ("%" in query or "dns" in query.lower()) and _holds_dns(query):
        raise Refusal(Reason.DNS_OVER_HTTPS, _NOT_THIS_WAY)
    return Question(facts, target)


def _names_dns(value: bytes) -> bool:
    return any(one.partition(b";")[0].strip() in _DNS_TYPES for one in value.split(b","))


def _holds_dns(query: str) -> bool:
    parts = (part.partition("=") for part in re.split("[&;]", query))
    return any(unquote_to_bytes(name).lower() == b"dns" and _is_dns_query(value) for name, _, value in parts)


def _is_dns_query(value: str) -> bool:
    """Whether this is base64 of what a name server would take for a query: opcode 0, not an answer, one question."""
    encoded = unquote_to_bytes(value)
    if not _BASE64.fullmatch(encoded):
        return False
    encoded = encoded.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        message = binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4))
    except binascii.Error:
        return False
    return len(message) >= _LEAST_DNS and message[2] & 0xF8 == 0 and message[4:6] == b"\0\1"


def question(head: RequestHead, scheme: Scheme, asked: Authority | None, like: RequestHead | None = None) -> Question:
    """Read what a request is about. Raises Refusal for what cannot be judged, or must not be mixed.

    `like` is a head that was not refused: where the fields are its own, they need not be looked through again.
    """
    target = classify_target(head)
    if asked is None and not isinstance(target, AbsoluteForm | AuthorityForm):
        raise Refusal(Reason.BAD_REQUEST, "a proxy is asked in absolute-form or with CONNECT; this is not a web server")
    authority = request_authority(head, target, scheme)
    if isinstance(target, AuthorityForm):
        return Question(Facts(stage=Stage.CONNECTION, scheme="https", authority=authority), b"", connect=True)
    if asked is not None and authority is not asked and authority != asked:
        if scheme == "http" and asked.port == DEFAULT_PORTS["https"] and authority.host == asked.host:
            raise Refusal(Reason.NOT_TLS, f"HTTP without TLS on port {asked.port}, and Host names {authority}")
        raise Refusal(Reason.NAME_MISMATCH, f"Host names {authority}, but the connection was opened for {asked}")
    path, mark, query = target.path.decode("ascii").partition("?")
    facts = Facts(
        stage=Stage.REQUEST,
        scheme=scheme,
        authority=authority,
        method=head.method,
        path=path,
        query=query if mark else None,
        websocket=head.upgrade is not None,
    )
    return judged_question(facts, target.path, () if like is not None and head.is_read_as(like) else head.fields)
