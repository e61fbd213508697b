import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.audit.escaping import clip, escape, escape_json


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain text", "plain text"),
        ("naïve ☃", "naïve ☃"),
        ("a\nb\rc\td", "a\\x0ab\\x0dc\\x09d"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("back\\slash", "back\\\\slash"),
        ("\\x1b", "\\\\x1b"),
    ],
)
def test_escape(given_text: str, shown: str) -> None:
    assert escape(given_text, 100) == shown


@given(st.text(st.characters(), max_size=50), st.integers(1, 40))
def test_the_result_is_printable_bounded_and_encodable(text: str, limit: int) -> None:
    shown = escape(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    shown.encode()


@given(st.text(st.characters(), max_size=20), st.text(st.characters(), max_size=20))
def test_different_texts_look_different(left: str, right: str) -> None:
    assert (escape(left, 1000) == escape(right, 1000)) == (left == right)


def test_a_cut_is_marked() -> None:
    assert clip("abcdef", 4) == "abc…"
    assert clip("abcd", 4) == "abcd"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_json_is_of_the_same_value_and_drives_no_terminal(text: str) -> None:
    shown = escape_json(json.dumps({text: [text]}, indent=2, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert shown.replace("\n", "").isprintable()
