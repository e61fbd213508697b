import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.audit.records import LIMITS, Entry, Kind, Plane, Record, Verdict, decode_entry, encode_record, record_from
from broker.policy.reasons import Reason
from tests.broker.audit.logs import decision

TEXT = st.text(st.characters(), max_size=1500)


def test_every_field_of_a_record_can_be_read_back() -> None:
    assert set(Entry.__struct_fields__) == set(Record.__struct_fields__) | {"id", "time", "hash"}


def test_every_text_has_a_limit() -> None:
    texts = {field.name for field in msgspec.structs.fields(Record) if field.type is str}
    assert texts == set(LIMITS)


def test_the_line_holds_what_was_said_and_nothing_else() -> None:
    assert json.loads(encode_record(decision(7))) == {
        "kind": "decision",
        "session": "s-1",
        "call": "call-7",
        "grant": "g-1",
        "policy": "p1",
        "plane": "inspect",
        "wanted": "198.18.0.1:443",
        "method": "GET",
        "scheme": "https",
        "authority": "api.example.com:443",
        "path": "/items/7?page=*",
        "verdict": "allow",
        "reason": "rule_allow",
        "rule": "project-api",
    }


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(LIMITS, TEXT)))
def test_any_text_becomes_one_bounded_printable_line(texts: dict[str, Any]) -> None:
    body = encode_record(Record(kind=Kind.DECISION, **texts))
    assert b"\n" not in body
    assert b"\r" not in body
    fields = json.loads(body)
    for name, limit in LIMITS.items():
        value = fields.get(name, "")
        assert len(value) <= limit, name
        assert value.isprintable(), name
    assert len(body) < 32 * 1024


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_limit_holds_for_plain_text_too(name: str) -> None:
    texts: dict[str, Any] = {name: "a b c d e f g h i/" * 5000}
    body = encode_record(Record(kind=Kind.DECISION, **texts))
    assert len(json.loads(body)[name]) == LIMITS[name]


@pytest.mark.parametrize(
    ("field", "value", "secret"),
    [
        ("path", "/x?key=hunter2", "hunter2"),
        ("authority", "user:hunter2@h.example:443", "hunter2"),
        ("detail", "Authorization: Bearer hunter2", "hunter2"),
        ("process", "curl --header 'X-Api-Key: hunter2'", "hunter2"),
        ("path", "/x\x1b[31m?key=hunter2", "hunter2"),
    ],
)
def test_secrets_do_not_reach_the_line(field: str, value: str, secret: str) -> None:
    texts: dict[str, Any] = {field: value}
    assert secret.encode() not in encode_record(Record(kind=Kind.DECISION, **texts))


def test_ids_are_kept_whatever_they_look_like() -> None:
    """A tool call's id looks like a token; it is what a reader searches for."""
    call = "toolu_01A09q90qw90lq917835lq9"
    record = Record(kind=Kind.DECISION, call=call, session="a1B2c3D4e5F6a1B2c3D4e5F6", policy="9f86d081884c7d65" * 4)
    fields = json.loads(encode_record(record))
    assert (fields["call"], fields["session"], fields["policy"]) == (record.call, record.session, record.policy)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "decision", "verdict": "maybe"},
        {"kind": "unknown"},
        {"kind": "decision", "plane": "carrier-pigeon"},
        {"kind": "decision", "reason": "because"},
        {"kind": "decision", "hash": "00"},
        {"kind": "decision", "bytes_up": "1"},
        {},
    ],
)
def test_plain_fields_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        record_from(fields)


def test_plain_fields_make_the_same_record() -> None:
    fields: dict[str, object] = {
        "kind": "decision",
        "plane": "dns",
        "verdict": "deny",
        "reason": "special_name",
        "authority": "wpad",
    }
    assert record_from(fields) == Record(
        kind=Kind.DECISION, plane=Plane.DNS, verdict=Verdict.DENY, reason=Reason.SPECIAL_NAME, authority="wpad"
    )


def test_a_line_of_a_later_version_stays_readable() -> None:
    line = b'{"id":"x-1","time":"2030-01-01T00:00:00.000000Z","kind":"thought","reason":"new_code","extra":[1,2]}'
    assert decode_entry(line).reason == "new_code"
