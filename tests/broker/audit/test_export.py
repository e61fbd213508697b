import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from broker.audit.export import as_csv, as_json_lines, as_ocsf, ocsf_event
from broker.audit.records import Entry

TIME = "2023-11-14T22:13:20.123456Z"


def entry(**fields: Any) -> Entry:
    return Entry(**{"id": "log-1", "time": TIME, "kind": "decision", **fields})


REQUEST = entry(
    session="s-1",
    call="c-1",
    policy="p9",
    plane="inspect",
    method="GET",
    scheme="https",
    authority="api.example.com:443",
    path="/v1/items?page=*",
    verdict="allow",
    reason="rule_allow",
    rule="project-api",
    dialled="93.184.216.34:443",
    status=200,
    bytes_up=10,
    bytes_down=2000,
    duration_ms=12.7,
)


def test_a_request_as_ocsf() -> None:
    assert ocsf_event(REQUEST) == {
        "activity_id": 3,
        "category_uid": 4,
        "class_uid": 4002,
        "type_uid": 400203,
        "time": 1_700_000_000_123,
        "severity_id": 1,
        "metadata": {
            "version": "1.3.0",
            "uid": "log-1",
            "correlation_uid": "c-1",
            "product": {"name": "Wicketgate", "vendor_name": "Wicketgate"},
            "profiles": ["security_control"],
        },
        "unmapped": {"session": "s-1", "call": "c-1", "plane": "inspect"},
        "dst_endpoint": {"hostname": "api.example.com", "ip": "93.184.216.34", "port": 443},
        "action_id": 1,
        "disposition_id": 1,
        "status_id": 1,
        "status_code": "rule_allow",
        "status_detail": "rule_allow",
        "firewall_rule": {"name": "project-api"},
        "policy": {"version": "p9"},
        "duration": 12,
        "traffic": {"bytes_out": 10, "bytes_in": 2000, "bytes": 2010},
        "http_request": {
            "http_method": "GET",
            "url": {
                "hostname": "api.example.com",
                "path": "/v1/items",
                "scheme": "https",
                "url_string": "https://api.example.com:443/v1/items?page=*",
                "port": 443,
                "query_string": "page=*",
            },
        },
        "http_response": {"code": 200},
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"plane": "inspect", "method": "PATCH"}, (4002, 9)),
        ({"plane": "http", "method": "PROPFIND"}, (4002, 99)),
        ({"plane": "connect", "method": "CONNECT", "verdict": "allow"}, (4001, 1)),
        ({"plane": "splice", "verdict": "allow"}, (4001, 1)),
        ({"plane": "tcp", "verdict": "deny"}, (4001, 5)),
        ({"plane": "tcp", "verdict": "failure"}, (4001, 4)),
        ({"kind": "close", "plane": "splice"}, (4001, 2)),
        ({"kind": "close", "plane": "splice", "verdict": "failure"}, (4001, 4)),
        ({"kind": "progress", "plane": "splice"}, (4001, 6)),
        ({"plane": "dns", "authority": "a.example"}, (4003, 1)),
        ({"kind": "policy", "event": "loaded"}, (0, 99)),
        ({"kind": "grant", "event": "issued"}, (0, 99)),
        ({"kind": "unheard-of"}, (0, 99)),
    ],
)
def test_ocsf_classes(fields: dict[str, Any], expected: tuple[int, int]) -> None:
    event = ocsf_event(entry(**fields))
    assert (event["class_uid"], event["activity_id"]) == expected
    assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    assert event["category_uid"] == event["class_uid"] // 1000


@pytest.mark.parametrize(
    ("verdict", "reason", "expected"),
    [
        ("allow", "rule_allow", (1, 1, 1)),
        ("allow", "observed", (1, 17, 1)),
        ("deny", "host_not_allowed", (2, 2, 2)),
        ("failure", "connect_refused", (1, 1, 2)),
    ],
)
def test_ocsf_outcomes(verdict: str, reason: str, expected: tuple[int, int, int]) -> None:
    event = ocsf_event(entry(plane="splice", authority="a.example:443", verdict=verdict, reason=reason))
    assert (event["action_id"], event["disposition_id"], event["status_id"]) == expected


def test_checkpoints_are_no_events() -> None:
    assert list(as_ocsf([entry(kind="checkpoint", event="closed")])) == []


def test_json_lines_are_the_records() -> None:
    lines = list(as_json_lines([REQUEST]))
    assert json.loads(lines[0])["authority"] == "api.example.com:443"
    assert lines[0].endswith("}\n")


@pytest.mark.parametrize("form", [as_json_lines, as_ocsf])
def test_json_drives_no_terminal(form: Callable[[Iterable[Entry]], Iterator[str]]) -> None:
    text = "a\x9b2J\x7f\u202e\u2028\U000e0001\x1bé"
    shown = "".join(form([entry(detail=text, kind="policy")]))
    assert shown.removesuffix("\n").isprintable()
    assert text in json.loads(shown).values()


def test_csv_can_be_read_back() -> None:
    nasty = entry(path='/a,"b"', detail="line")
    rows = list(csv.DictReader(io.StringIO("".join(as_csv([REQUEST, nasty])))))
    assert [row["path"] for row in rows] == ["/v1/items?page=*", '/a,"b"']
    assert rows[0]["bytes_down"] == "2000"


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\n=1", "\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20SUM(A1)"]
)
def test_csv_is_no_formula(text: str) -> None:
    rows = list(csv.DictReader(io.StringIO("".join(as_csv([entry(detail=text)])), newline="")))
    assert rows[0]["detail"] == f"'{text}"


@pytest.mark.parametrize("text", ["\x1b[31m", "a\x9b2J", "\u202e", "\x7f", "\x00"])
def test_csv_drives_no_terminal(text: str) -> None:
    """Our own records have nothing of the kind; a log that somebody wrote into may."""
    assert "".join(as_csv([entry(detail=text)])).replace("\r\n", "").isprintable()


def test_an_empty_export() -> None:
    assert list(as_ocsf([])) == []
    assert "".join(as_csv([])).startswith("id,time,kind")
