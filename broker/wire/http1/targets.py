"""The four forms of a request target (RFC 9112 §3.2), and the one authority that a request names.

Path and query stay the raw octets that were sent. The module says what a request asks for; it does not decide whether
that is allowed, nor whether the form has any business on the listener it came in by.
"""

import msgspec

from broker.policy.authority import Authority, parse_absolute_form, parse_authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.rewrite import DEFAULT_PORTS, Scheme


class OriginForm(msgspec.Struct, frozen=True, gc=False):
    """`/path?query`; the authority is in Host."""

    path: bytes


class AbsoluteForm(msgspec.Struct, frozen=True):
    """`http://host[:port]/path?query`, as sent to an explicit proxy."""

    authority: Authority
    path: bytes


class AuthorityForm(msgspec.Struct, frozen=True):
    """`host:port`, with CONNECT only."""

    authority: Authority


class AsteriskForm(msgspec.Struct, frozen=True):
    """`*`, with OPTIONS only: the server as a whole."""

    path: bytes = b"*"


type Target = OriginForm | AbsoluteForm | AuthorityForm | AsteriskForm


def classify_target(head: RequestHead) -> Target:
    """Read a request's target. Raises `Refusal` where method and form do not belong together, or as the authority does.

    Only `http` is served in absolute-form: what comes in clear is never sent on as if it had been protected.
    """
    target = head.target
    if head.method == "CONNECT":
        return AuthorityForm(parse_authority(target, default_port=None))
    if target.startswith(b"/"):
        return OriginForm(target)
    if target == b"*":
        if head.method != "OPTIONS":
            raise Refusal(Reason.BAD_REQUEST, "the target * is for OPTIONS only")
        return AsteriskForm()
    _, authority, path = parse_absolute_form(target)
    if head.method == "OPTIONS" and target.count(b"/") == 2 and b"?" not in target:
        path = b"*"  # RFC 9112 §3.2.4: the last proxy turns an empty path into the asterisk
    return AbsoluteForm(authority, path)


def request_authority(head: RequestHead, target: Target, scheme: Scheme) -> Authority:
    """The authority that a request names; where target and Host both name one, they must agree.

    RFC 9112 §3.2.2 lets the target win. A disagreement is refused instead: it is an attack or a fault, never a wish.
    """
    match target:
        case OriginForm() | AsteriskForm():
            return parse_authority(head.host, default_port=DEFAULT_PORTS[scheme])
        case AbsoluteForm(authority, _):
            default_port = DEFAULT_PORTS["http"]
        case AuthorityForm(authority):
            default_port = authority.port  # with CONNECT many clients leave the port out of Host
    if head.host and parse_authority(head.host, default_port=default_port) != authority:
        raise Refusal(Reason.BAD_REQUEST, "Host and the request target name different authorities")
    return authority
