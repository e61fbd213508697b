from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.audit.encoding import encode
from broker.audit.records import LIMITS, Event, Kind, Plane, Record, Verdict, encode_record
from broker.policy.reasons import Reason

PLAIN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.:/", max_size=40)
TEXT = PLAIN | st.text(st.characters(), max_size=1500)
NUMBERS = st.integers(0, 2**62)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(LIMITS, TEXT),
    "event": st.sampled_from(Event),
    "plane": st.sampled_from(Plane),
    "verdict": st.sampled_from(Verdict),
    "reason": st.sampled_from(Reason),
    "bytes_up": NUMBERS,
    "bytes_down": NUMBERS,
    "duration_ms": st.integers(1, 10**13).map(lambda tenths: tenths / 10),
    "status": st.integers(0, 999),
    "count": NUMBERS,
}
USUAL: dict[str, Any] = {
    "kind": Kind.CLOSE,
    "ref": "0123456789ab-17",
    "session": "s-1",
    "call": "call-1",
    "policy": "p1",
    "plane": Plane.INSPECT,
    "wanted": "198.18.0.1:443",
    "method": "GET",
    "scheme": "https",
    "authority": "api.example.com:443",
    "path": "/items/7",
    "reason": Reason.FINISHED,
    "rule": "project-api",
    "dialled": "[2001:db8::1]:443",
    "bytes_up": 117,
    "bytes_down": 5018,
    "duration_ms": 12.3,
    "status": 200,
}


# A duration of nothing is left out by one and may be written by the other: msgspec knows a float's default by identity.
@given(st.sampled_from(Kind), st.fixed_dictionaries({}, optional=FIELDS))
def test_it_says_byte_for_byte_what_the_slow_way_says(kind: Kind, fields: dict[str, Any]) -> None:
    record = Record(kind=kind, **fields)
    assert encode(record) == encode_record(record)


@given(st.sampled_from([Kind.DECISION, Kind.CLOSE]), st.fixed_dictionaries({}, optional=FIELDS))
def test_so_it_does_where_one_field_is_not_as_usual(kind: Kind, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        record = Record(**(USUAL | {"kind": kind, name: value}))
        assert encode(record) == encode_record(record)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"path": "/a?token=s3cr3t&page=2"},
        {"path": "/api/token/AbCdEf0123456789AbCdEf0123456789"},
        {"path": '/a"b'},
        {"path": "/a\\b"},
        {"path": "/" + "a" * 2000},
        {"path": "/\ud800"},
        {"authority": "user:secret@api.example.com:443"},
        {"authority": "user%3asecret%40api.example.com:443"},
        {"rule": 'a "rule"'},
        {"rule": "é" * 200},
        {"ref": 'a"b'},
        {"ref": "a\nb"},
        {"dialled": "\\"},
        {"dialled": "1" * 80},
        {"wanted": "1" * 80},
        {"duration_ms": 0.0},
        {"status": 0},
        {"status": 0, "method": "", "path": "", "plane": Plane.SPLICE},
        {"duration_ms": 1e7},
        {"duration_ms": 123456789012.3},
        {"bytes_down": 2**62},
        {"verdict": Verdict.FAILURE, "reason": Reason.UPSTREAM_CLOSED},
        {"detail": "closed by token=abc"},
        {"count": 3},
    ],
)
def test_what_is_like_the_usual_but_for_one_thing(changed: dict[str, Any]) -> None:
    for _ in range(2):  # made, then remembered
        record = Record(**(USUAL | changed))
        assert encode(record) == encode_record(record)
