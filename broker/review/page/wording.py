"""Times, amounts and requests as people read them. Pure.

What the log holds is a payload's choice: `visible` shows what would steer an eye or a terminal as escapes.
"""

from datetime import UTC, datetime
from typing import Final

from broker.audit.chain import Checkpoint
from broker.audit.escaping import escape
from broker.audit.records import Entry

_WIDE: Final = 4096
_REASONS: Final = {
    "egress_off": "the policy has no egress",
    "host_not_allowed": "no rule allows this host",
    "port_not_allowed": "no rule allows this port",
    "method_not_allowed": "no rule allows this method",
    "path_not_allowed": "no rule allows this path",
    "query_not_allowed": "no rule allows this query",
    "websocket_not_allowed": "no rule allows WebSocket here",
    "plain_http_not_allowed": "no rule allows HTTP without TLS",
    "rule_deny": "a rule denies it",
    "grant_missing": "the session has no grant",
    "grant_expired": "the grant has expired",
    "grant_revoked": "the grant was revoked",
    "grant_exhausted": "the grant is used up",
    "address_literal": "an address instead of a name",
    "special_name": "a name with a special meaning",
    "address_refused": "the name leads to a refused address",
    "name_mismatch": "name, TLS and Host do not agree",
    "unknown_protocol": "neither TLS nor HTTP",
    "not_tls": "no TLS where TLS is spoken",
    "client_rejected_ca": "the client does not trust the CA",
    "dns_over_https": "DNS over HTTPS",
    "too_many_connections": "too many connections at once",
    "rate_limited": "more requests a second than granted",
    "audit_unavailable": "the log could not be written",
}


def visible(text: str) -> str:
    """Show what is unprintable as escapes; what was escaped when it was written stays as it is."""
    return text if text.isprintable() else "\\".join(escape(part, _WIDE) for part in text.split("\\"))


def outcome(entry: Entry, close: Entry | None = None) -> str:
    """The verdict that stands: a close record may say that what was allowed came to nothing. Empty for other kinds."""
    last = close.verdict if close is not None and close.verdict in {"deny", "failure"} else entry.verdict
    return {"allow": "allowed", "deny": "denied", "failure": "failed"}.get(last, "")


def meaning(reason: str) -> str:
    """What a reason code means, in a phrase; empty where the code says it."""
    return _REASONS.get(reason, "")


def target(entry: Entry) -> str:
    """What was asked for, as an address of the web where it is one."""
    if entry.scheme:
        return f"{entry.scheme}://{entry.authority}{entry.path}"
    return (entry.authority + entry.path) or entry.wanted


def happening(entry: Entry | Checkpoint) -> str:
    """A record of another kind than a request, in a few words."""
    return f"{entry.kind} {entry.event}".replace("_", " ").strip()


def host_of(entry: Entry) -> str:
    """The host without its port, for a link to all records of it."""
    place = entry.authority or entry.wanted
    host, colon, port = place.rpartition(":")
    return host if colon and port.isdigit() else place


def instant(microseconds: int) -> str:
    """Microseconds since the epoch as RFC 3339; what no calendar holds as the number."""
    try:
        moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def readable(time: str) -> str:
    """An RFC 3339 time to the second, as people write it; every time of the page is UTC."""
    return time[:19].replace("T", " ")


def clock(time: str) -> str:
    """The time of day, to the millisecond where it is known."""
    return time[11:].rstrip("Z").partition("+")[0][:12]


def size(count: int) -> str:
    """Bytes in three digits and a unit."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.0f} EB"


def lasted(milliseconds: float) -> str:
    """A duration in the unit that suits it."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def between(first: int, last: int) -> str:
    """How long something went on, from microseconds to microseconds."""
    return lasted(max(0, last - first) / 1000)
