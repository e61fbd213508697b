"""Records in the forms that other programs read: JSON Lines, CSV (RFC 4180) and OCSF 1.3.0.

Pure. An export is a copy for analysis: it carries record ids and hashes, but only the log itself can be verified.

OCSF (schema.ocsf.io): requests become HTTP Activity (4002), connections Network Activity (4001), names DNS Activity
(4003), each with the security_control profile; everything else a Base Event (0). `type_uid` is 100 times the class plus
the activity.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from broker.audit.escaping import escape_json
from broker.audit.keys import microseconds, split_authority
from broker.audit.records import Entry
from broker.policy.reasons import Reason

OCSF_VERSION: Final = "1.3.0"
_FIELDS: Final = Entry.__struct_fields__
_HTTP_ACTIVITY: Final = {
    "CONNECT": 1,
    "DELETE": 2,
    "GET": 3,
    "HEAD": 4,
    "OPTIONS": 5,
    "POST": 6,
    "PUT": 7,
    "TRACE": 8,
    "PATCH": 9,
}
_NETWORK_ACTIVITY: Final = {
    ("decision", "allow"): 1,  # Open
    ("decision", "deny"): 5,  # Refuse
    ("decision", "failure"): 4,  # Fail
    ("progress", ""): 6,  # Traffic
    ("close", ""): 2,  # Close
    ("close", "failure"): 4,
}
_ACTION: Final = {"allow": 1, "deny": 2, "failure": 1}  # Allowed, Denied; a failure was allowed and did not work
_DISPOSITION: Final = {"allow": 1, "deny": 2, "failure": 1}  # Allowed, Blocked
_LOGGED: Final = 17  # would have been denied, and was only recorded
_UNMAPPED: Final = ("session", "call", "grant", "plane", "ref", "event", "detail", "wanted", "hash")
# The wide forms are the same signs to spreadsheets of East Asian languages.
_FORMULA: Final = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
Event = dict[str, Any]


def as_json_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Give one JSON object a line, in the log's own form."""
    for entry in entries:
        yield escape_json(msgspec.json.encode(entry).decode()) + "\n"


def as_csv(entries: Iterable[Entry]) -> Iterator[str]:
    """Give a header line and one line a record.

    A text that a spreadsheet would run as a formula gets an apostrophe in front: paths and details are the sandbox's.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(_FIELDS)
    for entry in entries:
        writer.writerow(_cell(getattr(entry, name)) for name in _FIELDS)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def as_ocsf(entries: Iterable[Entry]) -> Iterator[str]:
    """Give one OCSF event a line. The log's own checkpoints are left out."""
    for entry in entries:
        if entry.kind != "checkpoint":
            yield escape_json(msgspec.json.encode(ocsf_event(entry)).decode()) + "\n"


FORMATS: Final[dict[str, Callable[[Iterable[Entry]], Iterator[str]]]] = {
    "ocsf": as_ocsf,
    "jsonl": as_json_lines,
    "csv": as_csv,
}


def ocsf_event(entry: Entry) -> Event:
    """Return one record as an OCSF event."""
    if entry.kind not in ("decision", "progress", "close"):
        name = f"{entry.kind} {entry.event}".strip()
        return _event(entry, 0, 99) | {"activity_name": name, "message": entry.detail or name}
    if entry.plane == "dns":
        host, _ = split_authority(entry.authority)
        return _network(entry, 4003, 1) | {"query": {"hostname": host}}
    if entry.method and entry.method != "CONNECT":
        return _network(entry, 4002, _HTTP_ACTIVITY.get(entry.method, 99)) | _http(entry)
    key = (entry.kind, entry.verdict)
    return _network(entry, 4001, _NETWORK_ACTIVITY.get(key, _NETWORK_ACTIVITY.get((entry.kind, ""), 0)))


def _event(entry: Entry, class_uid: int, activity: int) -> Event:
    return {
        "activity_id": activity,
        "category_uid": class_uid // 1000,
        "class_uid": class_uid,
        "type_uid": class_uid * 100 + activity,
        "time": microseconds(entry.time) // 1000,
        "severity_id": 2 if entry.verdict == "deny" else 1,  # Low, Informational
        "metadata": {
            "version": OCSF_VERSION,
            "uid": entry.id,
            "correlation_uid": entry.call or entry.session,
            "product": {"name": "Wicketgate", "vendor_name": "Wicketgate"},
        },
        "unmapped": {name: value for name in _UNMAPPED if (value := getattr(entry, name))},
    }


def _network(entry: Entry, class_uid: int, activity: int) -> Event:
    event = _event(entry, class_uid, activity)
    event["metadata"]["profiles"] = ["security_control"]
    event["dst_endpoint"] = _endpoint(entry)
    if entry.verdict:
        event |= {
            "action_id": _ACTION.get(entry.verdict, 0),
            "disposition_id": _LOGGED if entry.reason == Reason.OBSERVED else _DISPOSITION.get(entry.verdict, 0),
            "status_id": 1 if entry.verdict == "allow" else 2,  # Success, Failure
        }
    if entry.reason:
        event |= {"status_code": entry.reason, "status_detail": entry.detail or entry.reason}
    if entry.rule:
        event["firewall_rule"] = {"name": entry.rule}
    if entry.policy:
        event["policy"] = {"version": entry.policy}
    if entry.count:
        event["count"] = entry.count
    if entry.duration_ms:
        event["duration"] = int(entry.duration_ms)
    if entry.bytes_up or entry.bytes_down:
        total = entry.bytes_up + entry.bytes_down
        event["traffic"] = {"bytes_out": entry.bytes_up, "bytes_in": entry.bytes_down, "bytes": total}
    return event


def _endpoint(entry: Entry) -> Event:
    host, port = split_authority(entry.authority or entry.wanted)
    address, dialled_port = split_authority(entry.dialled)
    endpoint: Event = {"hostname": host.strip("[]")}
    if address:
        endpoint["ip"] = address.strip("[]")
    if port or dialled_port:
        endpoint["port"] = port or dialled_port
    return endpoint


def _http(entry: Entry) -> Event:
    host, port = split_authority(entry.authority)
    path, _, query = entry.path.partition("?")
    url: Event = {"hostname": host, "path": path, "scheme": entry.scheme}
    url["url_string"] = f"{entry.scheme}://{entry.authority}{entry.path}"
    if port:
        url["port"] = port
    if query:
        url["query_string"] = query
    event: Event = {"http_request": {"http_method": entry.method, "url": url}}
    if entry.status:
        event["http_response"] = {"code": entry.status}
    return event


def _cell(value: str | float) -> str | float:
    if not isinstance(value, str):
        return value
    if not value.isprintable():  # of a log that somebody wrote into: ours have no such characters
        value = "".join(char if char.isprintable() or char in "\t\r\n" else ascii(char)[1:-1] for char in value)
    return f"'{value}" if value[:1] in _FORMULA else value
