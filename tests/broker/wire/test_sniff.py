"""Which protocol first bytes begin: a table, and what holds for any bytes."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.sniff import MAX_NEEDED, Protocol, sniff

CASES = tomllib.loads((Path(__file__).parents[2] / "cases/sniff.toml").read_text())["case"]
STARTS = [b"", b"GET", b"\r\n", b"PRI * HTTP/2.0", b"SSH-", b"\x16\x03\x01", b"\x80\x2e\x01\x00\x02"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_first_bytes(case: dict[str, str]) -> None:
    first = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode()
    expected = None if case["protocol"] == "need_more" else Protocol(case["protocol"])
    assert sniff(first) is expected


@given(st.sampled_from(STARTS), st.binary(max_size=60))
def test_an_answer_comes_in_time_and_stays(start: bytes, rest: bytes) -> None:
    data = start + rest
    answers = [sniff(data[:size]) for size in range(len(data) + 1)]
    known = [answer for answer in answers if answer is not None]
    assert None not in answers[MAX_NEEDED:]
    assert len(set(known)) <= 1
    assert answers == [None] * (len(answers) - len(known)) + known
