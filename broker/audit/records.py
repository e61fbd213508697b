"""The audit record: its fields, its closed sets, its JSON form.

Pure: no clock, no file. `encode_record` is the one way into the log, and it redacts, escapes and bounds what it is
given, so that no caller can forget to. It must not decide anything about a request.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from broker.audit.escaping import escape
from broker.audit.redaction import redact_authority, redact_target, redact_text
from broker.policy.reasons import Reason


class Kind(StrEnum):
    """What a record is about."""

    DECISION = "decision"  # one request, connection or name was judged
    PROGRESS = "progress"  # a long connection goes on: bytes so far
    CLOSE = "close"  # a connection or exchange ended: bytes and duration in full
    SESSION = "session"
    POLICY = "policy"
    GRANT = "grant"
    CHECKPOINT = "checkpoint"  # written by the log itself


class Event(StrEnum):
    """What happened, for the kinds that are not about one connection."""

    START = "start"  # session
    END = "end"  # session
    LOST = "lost"  # session: its worker has died, and with it what was open
    LOADED = "loaded"  # policy
    RELOAD_FAILED = "reload_failed"  # policy
    FLAG = "flag"  # policy: egress turned on or off, detail says which
    WORKER_STARTED = "worker_started"  # policy: detail says which, and the id of its log
    WORKER_ENDED = "worker_ended"  # policy: detail says which, how, and how many sessions were lost
    ISSUED = "issued"  # grant
    REFUSED = "refused"  # grant: asked for and not issued; policy: somebody who may not use a socket
    REVOKED = "revoked"  # grant
    EXPIRED = "expired"  # grant
    EXHAUSTED = "exhausted"  # grant
    OPENED = "opened"  # checkpoint: first line of a file
    INTERVAL = "interval"  # checkpoint: signed while the log goes on
    ROTATED = "rotated"  # checkpoint: last line of a file, the log goes on in the next
    CLOSED = "closed"  # checkpoint: last line of the log
    GAP = "gap"  # checkpoint: the log could not be written for a while; says for how long and what was refused
    RECOVERED = "recovered"  # checkpoint: last line, added after the writer died


class Plane(StrEnum):
    """The part of the broker that handled the traffic."""

    DNS = "dns"
    HTTP = "http"
    SPLICE = "splice"
    INSPECT = "inspect"
    H2 = "h2"
    TCP = "tcp"
    CONNECT = "connect"


class Verdict(StrEnum):
    """What came out. A failure was allowed and did not work."""

    ALLOW = "allow"
    DENY = "deny"
    FAILURE = "failure"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record, as a caller hands it to `AuditLog.append`, which adds id, time and hash.

    Addresses are `ip:port` with IPv6 in brackets. `path` is the raw target with its query: it is redacted on the way.
    Bytes are payload bytes from (`up`) and to (`down`) the sandbox. `ref` names the decision's record id in a progress
    or close record. A `count` says that the record stands for so many refusals like the one in `ref`.
    """

    kind: Kind
    event: Event | None = None
    ref: str = ""
    session: str = ""
    call: str = ""
    grant: str = ""
    policy: str = ""
    process: str = ""
    plane: Plane | None = None
    wanted: str = ""
    method: str = ""
    scheme: str = ""
    authority: str = ""
    path: str = ""
    verdict: Verdict | None = None
    reason: Reason | None = None
    rule: str = ""
    detail: str = ""
    dialled: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    duration_ms: float = 0.0
    status: int = 0
    count: int = 0


Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # what SQLite can hold and add up


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line as it is read back. Codes are plain text: a log of another version must stay readable."""

    id: str
    time: str
    kind: str
    event: str = ""
    ref: str = ""
    session: str = ""
    call: str = ""
    grant: str = ""
    policy: str = ""
    process: str = ""
    plane: str = ""
    wanted: str = ""
    method: str = ""
    scheme: str = ""
    authority: str = ""
    path: str = ""
    verdict: str = ""
    reason: str = ""
    rule: str = ""
    detail: str = ""
    dialled: str = ""
    bytes_up: Amount = 0
    bytes_down: Amount = 0
    duration_ms: float = 0.0
    status: Amount = 0
    count: Amount = 0
    hash: str = ""


# Characters kept of each text. A name has at most 253 (RFC 1035 §2.3.4), a port six, brackets two.
LIMITS: Final = {
    "ref": 64,
    "session": 128,
    "call": 128,
    "grant": 128,
    "policy": 128,
    "process": 128,
    "wanted": 64,
    "method": 32,
    "scheme": 16,
    "authority": 320,
    "path": 1024,
    "rule": 128,
    "detail": 512,
    "dialled": 64,
}
_encode = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(Entry).decode


def encode_record(record: Record) -> bytes:
    """Return the JSON object of a record, redacted, escaped and bounded, without id, time and hash."""
    path = record.path
    if path and (logged := redact_target(path)) != path:
        record = msgspec.structs.replace(record, path=logged)
    if record.detail or record.process or "@" in record.authority or "%" in record.authority:
        record = _redacted(record)
    try:
        body = _encode(record)
    except UnicodeEncodeError:  # a lone surrogate
        return _encode(_escaped(record))
    # One look at the bytes clears nearly every record: nothing escaped by JSON, nothing outside printable ASCII.
    if body.isascii() and b"\\" not in body and b"\x7f" not in body and _is_short(record, len(body)):
        return body
    return _encode(_escaped(record))


def decode_entry(line: bytes) -> Entry:
    """Read one line of a log. Raises `msgspec.DecodeError` or `msgspec.ValidationError` (its child)."""
    return _decode_entry(line)


def record_from(fields: dict[str, object]) -> Record:
    """Build a record from plain fields, checking names and types. Raises `msgspec.ValidationError`."""
    unknown = fields.keys() - set(Record.__struct_fields__)
    if unknown:
        raise msgspec.ValidationError(f"a record has no field {', '.join(sorted(unknown))}")
    return msgspec.convert(fields, Record)


def _redacted(record: Record) -> Record:
    """The rarer fields that may hold a secret."""
    return msgspec.structs.replace(
        record,
        detail=redact_text(record.detail),
        process=redact_text(record.process),
        authority=redact_authority(record.authority),
    )


def _is_short(record: Record, size: int) -> bool:
    """The same limits as `LIMITS`, spelled out: this runs for every record. No text is longer than all, of `size`."""
    return (
        (size <= 320 or (len(record.path) <= 1024 and len(record.authority) <= 320 and len(record.detail) <= 512))
        and len(record.method) <= 32
        and len(record.session) <= 128
        and len(record.call) <= 128
        and len(record.grant) <= 128
        and len(record.policy) <= 128
        and len(record.process) <= 128
        and len(record.rule) <= 128
        and len(record.wanted) <= 64
        and len(record.dialled) <= 64
        and len(record.ref) <= 64
        and len(record.scheme) <= 16
    )


def _escaped(record: Record) -> Record:
    return msgspec.structs.replace(
        record, **{name: escape(getattr(record, name), limit) for name, limit in LIMITS.items()}
    )
