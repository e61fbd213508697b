"""The JSON form of a record, quickly: the two that nearly every request makes are put together from known parts.

`encode` gives what `encode_record` gives, byte for byte (but for a decision's duration of 0.0, which is left out); for
anything but an allow and the ordinary end of what was allowed it asks that. What is remembered between records is few:
who asks whom, rules, paths without a query.

Pure.
"""

import re
from functools import lru_cache
from typing import Final

import msgspec

from broker.audit.escaping import escape
from broker.audit.records import LIMITS, Kind, Plane, Record, Verdict, encode_record
from broker.audit.redaction import redact_target
from broker.policy.reasons import Reason

_DECISION: Final = Kind.DECISION
_CLOSE: Final = Kind.CLOSE
_EMPTY: Final = len(b'{"kind":"decision"')
_SHORT: Final = 512  # paths up to here are remembered, without their queries
_IS_ID: Final = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)  # an id of a log's own
_encode = msgspec.json.Encoder().encode


def encode(record: Record) -> bytes:
    """Return the JSON object of a record, redacted, escaped and bounded, without id, time and hash."""
    if record.detail or record.count or record.process or record.event is not None:
        return encode_record(record)
    about = _about(
        record.session,
        record.call,
        record.grant,
        record.policy,
        record.plane,
        record.wanted,
        record.method,
        record.scheme,
        record.authority,
    )
    if about is None:
        return encode_record(record)
    path = record.path
    said = _short_path(path) if len(path) <= _SHORT and "?" not in path else _path(path)
    outcome = _outcome(record.verdict, record.reason, record.rule)
    ref, dialled, up, down = record.ref, record.dialled, record.bytes_up, record.bytes_down
    took, status = record.duration_ms, record.status
    if record.kind is _DECISION and not (ref or dialled or up or down or took or status):
        return b'{"kind":"decision"%b%b%b}' % (about, said, outcome)
    if record.kind is _CLOSE and up and down and took and _IS_ID.fullmatch(ref):
        moved = b',"bytes_up":%d,"bytes_down":%d,"duration_ms":%a' % (up, down, took)
        answer = b',"status":%d' % status if status else b""
        begin = b'{"kind":"close","ref":"%b"' % ref.encode()
        return b"%b%b%b%b%b%b%b}" % (begin, about, said, outcome, _dialled(dialled), moved, answer)
    return encode_record(record)


@lru_cache(maxsize=1024)
def _about(  # noqa: PLR0913, PLR0917  (by position: it is faster, and all are texts of one record)
    session: str,
    call: str,
    grant: str,
    policy: str,
    plane: Plane | None,
    wanted: str,
    method: str,
    scheme: str,
    authority: str,
) -> bytes | None:
    """The members that say who asks whom, each with the comma before it. None where a secret may be among them."""
    if "@" in authority or "%" in authority:
        return None
    record = Record(
        kind=_DECISION,
        session=session,
        call=call,
        grant=grant,
        policy=policy,
        plane=plane,
        wanted=wanted,
        method=method,
        scheme=scheme,
        authority=authority,
    )
    return encode_record(record)[_EMPTY:-1]


def _path(path: str) -> bytes:
    """The member of a path, with the comma before it."""
    if not path:
        return b""
    text = escape(redact_target(path), LIMITS["path"])
    if text.isascii() and '"' not in text and "\\" not in text:
        return b',"path":"%b"' % text.encode()
    return b',"path":%b' % _encode(text)


_short_path = lru_cache(maxsize=1024)(_path)


@lru_cache(maxsize=1024)
def _outcome(verdict: Verdict | None, reason: Reason | None, rule: str) -> bytes:
    """The members of what came out, each with the comma before it."""
    return encode_record(Record(kind=_DECISION, verdict=verdict, reason=reason, rule=rule))[_EMPTY:-1]


@lru_cache(maxsize=1024)
def _dialled(dialled: str) -> bytes:
    """The member of the address that was dialled, with the comma before it."""
    return encode_record(Record(kind=_DECISION, dialled=dialled))[_EMPTY:-1]
