import pytest

from broker.audit.records import Entry
from broker.policy.reasons import Family, Reason
from broker.review.page import wording


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1500, "1.5 kB"), (999_499, "999 kB"), (999_999, "1 MB"),
     (5_678_901, "5.68 MB"), (2**62, "4.61e+03 PB")],
)  # fmt: skip
def test_sizes(count: int, text: str) -> None:
    assert wording.size(count) == text.replace("4.61e+03 PB", "5 EB")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (0.4, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h 0 min"),
     (180_000_000, "2 d 2 h")],
)  # fmt: skip
def test_durations(milliseconds: float, text: str) -> None:
    assert wording.lasted(milliseconds) == text


def test_times() -> None:
    assert wording.instant(1_796_072_400_000_001) == "2026-11-30T21:00:00Z"
    assert wording.instant(2**62) == str(2**62)
    assert wording.instant(-(2**62)) == str(-(2**62))
    assert wording.readable("2026-11-30T21:00:00.123456Z") == "2026-11-30 21:00:00"
    assert wording.clock("2026-11-30T21:00:00.123456Z") == "21:00:00.123"
    assert wording.clock("2026-11-30T21:00:00+00:00") == "21:00:00"


def test_what_turns_text_around_is_shown_as_an_escape() -> None:
    assert wording.visible("a\u202eb\u200f\x1b\x00\n") == "a\\u202eb\\u200f\\x1b\\x00\\x0a"
    assert wording.visible("\\u202e stays") == "\\u202e stays"


def test_a_close_record_says_what_came_of_an_allow() -> None:
    allowed = Entry(id="a-1", time="", kind="decision", verdict="allow")
    ended = Entry(id="a-2", time="", kind="close", verdict="deny")
    assert wording.outcome(allowed) == "allowed"
    assert wording.outcome(allowed, ended) == "denied"
    assert wording.outcome(allowed, Entry(id="a-3", time="", kind="close")) == "allowed"
    assert wording.outcome(Entry(id="a-4", time="", kind="session")) == ""


@pytest.mark.parametrize(
    ("authority", "host"),
    [("a.example:443", "a.example"), ("[2001:db8::1]:443", "[2001:db8::1]"), ("a.example", "a.example"), ("", "")],
)
def test_the_host_of_a_record(authority: str, host: str) -> None:
    assert wording.host_of(Entry(id="a-1", time="", kind="decision", authority=authority)) == host


def test_phrases_are_those_of_reasons_that_there_are() -> None:
    known = {reason.value for reason in Reason if reason.family in {Family.DENY, Family.FAILURE}}
    assert wording._REASONS.keys() <= known
