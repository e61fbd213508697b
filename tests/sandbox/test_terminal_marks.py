"""Marks in what a terminal shows: found however it is cut, with this number only, and never part of the output."""

import random
import re

import pytest

from sandbox.output import Budget
from sandbox.terminal_runs import Marks

NUMBER = "0123456789abcdef0123456789abcdef"
BEGIN, END = f"\x1b]7777;{NUMBER};begin\x07".encode(), f"\x1b]7777;{NUMBER};7\x07".encode()


async def read(shown: bytes, cuts: random.Random | None = None, *, keep: int = 1 << 20) -> Marks:
    marks = Marks(NUMBER, Budget(keep))
    at = 0
    while at < len(shown):
        size = cuts.randint(1, 5) if cuts is not None else len(shown)
        await marks.feed(shown[at : at + size])
        at += size
    return marks


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        (b"$ . /run/x\r\n" + BEGIN + b"one\r\ntwo\r\n" + END + b"$ ", "one\ntwo\n"),
        (BEGIN + b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1bPx\x1b\\plain\x1b(B" + END, "red plain"),
        (BEGIN + b"a\x1b]7777;ffffffffffffffffffffffffffffffff;0\x07b" + END, "ab"),
        (BEGIN + "ü€🚪\r\n".encode() + END, "ü€🚪\n"),
        (BEGIN + b"10%\r50%\r100%\r\n" + END, "10%\n50%\n100%\n"),
        (BEGIN + b"a\xc2\x9b2J\xc2\x9d0;x\x1b" + END, "a2J0;x"),
        (BEGIN + END, ""),
    ],
)
async def test_what_is_between(shown: bytes, output: str) -> None:
    for seed in range(20):
        marks = await read(shown, random.Random(seed) if seed else None)
        assert marks.text(to_the_mark=True) == output
        words = [marks.seen.get_nowait() for _ in range(marks.seen.qsize())]
        assert words == ["begin", "7"]


async def test_a_flood_does_not_hide_the_end() -> None:
    marks = await read(BEGIN + b"x" * 100_000 + END, keep=1000)
    assert marks.text(to_the_mark=True) == "x" * 1000
    assert marks.budget.dropped == 99_000
    assert [marks.seen.get_nowait() for _ in range(2)] == ["begin", "7"]


async def test_a_flood_of_marks_takes_no_memory_and_does_not_hide_the_end() -> None:
    forged = f"\x1b]7777;{NUMBER};x\x07".encode()
    marks = await read(BEGIN + forged * 50_000 + b"shown" + END)
    words = [marks.seen.get_nowait() for _ in range(marks.seen.qsize())]
    assert len(words) < 100
    assert words[-1] == "7"
    assert marks.text(to_the_mark=True) == "shown"


async def test_nothing_is_remembered_of_a_run() -> None:
    """Each has a number of its own; `re` remembers the last patterns, which are a few kilobytes each."""
    remembered = dict(vars(re)["_cache"])
    for number in range(20):
        await Marks(f"{number:032x}", Budget(10)).feed(BEGIN + END)
    assert vars(re)["_cache"] == remembered
