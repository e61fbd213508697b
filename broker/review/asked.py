"""What a record says was asked: from a line of the log back to the question that `decide` takes.

The log hides what may be secret: a `*` in a path or a query stands for one or more characters of one segment or value,
and a raw `*` looks the same. So nothing here takes a `*` for what it is. A record that stands for many others has no
path, and the method of the first one only.
"""

import re
from functools import lru_cache
from typing import Final

import msgspec

from broker.audit.escaping import ELLIPSIS
from broker.audit.records import LIMITS, Entry, Plane
from broker.policy.authority import Authority, parse_authority
from broker.policy.facts import Facts, Scheme, Stage
from broker.policy.reasons import Reason, Refusal

HIDDEN: Final = "*"
_SCHEMES: Final[dict[str, Scheme]] = {"https": "https", "http": "http", "tcp": "tcp"}
_UNREAD: Final = frozenset({Plane.TCP.value, Plane.SPLICE.value, Plane.CONNECT.value})
# RFC 9112 §3.2.2: an explicit proxy is asked in absolute-form, and the target is logged as it came.
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


SWITCHED: Final = 101
_CONNECT, _WEBSOCKET = Plane.CONNECT.value, Reason.WEBSOCKET_NOT_ALLOWED.value
_WOULD_BE_WEBSOCKET: Final = f"would be denied: {_WEBSOCKET}:"
# `broker.gateway.requests`: the host of the request is not the one that the connection was opened for.
_TWO_HOSTS: Final = "HTTP without TLS on port "


class Asked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A question as far as it is on record.

    whole: false where only the destination is known. hidden: the path or query holds what the log hides.
    cut: the path ends where the log cut it, so that its last segment and its query are not known.
    """

    facts: Facts
    whole: bool = True
    hidden: bool = False
    cut: bool = False


def read_asked(entry: Entry) -> Asked | None:
    """What a decision or close record was about; `None` where it names no destination that a rule could."""
    scheme = "https" if entry.plane == _CONNECT else _SCHEMES.get(entry.scheme)
    authority = _authority(entry.authority)
    if scheme is None or authority is None or entry.detail.startswith(_TWO_HOSTS):
        return None
    if entry.plane in _UNREAD or not entry.method:
        return Asked(facts=Facts(stage=Stage.CONNECTION, scheme=scheme, authority=authority))
    if entry.count or not entry.path:
        return Asked(facts=Facts(stage=Stage.CONNECTION, scheme=scheme, authority=authority), whole=False)
    target, cut = _target(entry.path)
    path, mark, query = target.partition("?")
    facts = Facts(
        stage=Stage.REQUEST,
        scheme=scheme,
        authority=authority,
        method=entry.method,
        path=path,
        query=query if mark else None,
        websocket=_is_websocket(entry),
    )
    return Asked(facts=facts, hidden=HIDDEN in target or cut, cut=cut)


def opening_of(facts: Facts) -> Facts:
    """The question about the connection that a request came over."""
    return Facts(stage=Stage.CONNECTION, scheme=facts.scheme, authority=facts.authority)


def _is_websocket(entry: Entry) -> bool:
    """As far as a record tells: by what was refused, or by what became of it (RFC 6455 §4.2.2)."""
    if entry.status == SWITCHED or entry.reason == _WEBSOCKET:
        return True
    return entry.detail.startswith(_WOULD_BE_WEBSOCKET)


def _target(path: str) -> tuple[str, bool]:
    cut = len(path) >= LIMITS["path"] and path.endswith(ELLIPSIS)
    if not path.startswith("/") and (begin := _ABSOLUTE.match(path)):
        rest = path[begin.end() :]
        path = rest if rest.startswith("/") else f"/{rest}"
    return path, cut


@lru_cache(maxsize=1024)
def _authority(text: str) -> Authority | None:
    try:
        return parse_authority(text.encode("ascii", "backslashreplace"), default_port=None)
    except Refusal:
        return None
