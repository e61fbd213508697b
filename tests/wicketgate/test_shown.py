"""What of a sandbox's screen reaches a person's terminal: pictures, and nothing that makes it answer, copy or print."""

import random

import pytest

from wicketgate.shown import Shown

ST = "\x1b\\"


def shown(data: str | bytes, cuts: random.Random | None = None) -> str:
    content = data.encode() if isinstance(data, str) else data
    screen, kept, at = Shown(), b"", 0
    while at < len(content):
        size = cuts.randint(1, 4) if cuts is not None else len(content)
        kept += screen.feed(content[at : at + size])
        at += size
    return kept.decode()


@pytest.mark.parametrize(
    "data",
    [
        "plain ü€🚪\r\n\t\b\a",
        "\x1b[31;1mred\x1b[0m\x1b[38;5;196m\x1b[38:2::1:2:3m",
        "\x1b[H\x1b[2J\x1b[10;20H\x1b[K\x1b[3A\x1b[2X\x1b[4P\x1b[5@\x1b[6L\x1b[1;24r\x1b[5b",
        "\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l\x1b[?2004h\x1b[?1000;1006h\x1b[?1049l\x1b[?7h\x1b[4h",
        "\x1b7\x1b8\x1bM\x1bD\x1bE\x1bH\x1b>\x1b(0qx\x1b(B\x0e\x0f",
        "\x1b[2 q\x1b[!p\x1b[>4;1m\x1b[?1c",
    ],
)
def test_what_draws_passes(data: str) -> None:
    for seed in range(10):
        assert shown(data, random.Random(seed) if seed else None) == data


@pytest.mark.parametrize(
    ("data", "left"),
    [
        # strings: the clipboard, a title, a link, a notification, a picture, tmux's and screen's ways past themselves
        (f"a\x1b]52;c;ZXZpbA=={ST}b", "ab"),
        ("a\x1b]0;title\x07b", "ab"),
        (f"a\x1b]8;;http://x{ST}link\x1b]8;;{ST}b", "alinkb"),
        ("a\x1b]777;notify;x\x07\x1b]9;x\x07\x1b]1337;File=:x\x07b", "ab"),
        (f"a\x1bPtmux;\x1b\x1b]52;c;x\x07{ST}b", "ab"),
        (f"a\x1bPq#0{ST}\x1b_Gx{ST}\x1b^x{ST}\x1bXx{ST}\x1bkname{ST}b", "anameb"),
        (f"a\x1bP+q544e{ST}\x1bP$qm{ST}b", "ab"),
        ("a\x1b]0;x\x18b", "ab"),
        # what a terminal answers, and its window and its printer
        ("a\x1b[c\x1b[0c\x1b[>c\x1b[=c\x1b[>q\x1bZb\x05", "ab"),
        ("a\x1b[5n\x1b[6n\x1b[?6n\x1b[?996n\x1b[x\x1b[?25$p\x1b[4$p\x1b[?u\x1b[>1u\x1b[1;1;1;1;9;9*yb", "ab"),
        ("a\x1b[21t\x1b[18t\x1b[3;0;0t\x1b[22;0tb\x1b[4i\x1b[?5i", "ab"),
        ("a\x1b[2h\x1b[20h\x1b[?3h\x1b[?9999h\x1b[?1;9999hb\x1b[3J\x1b[0;3J\x1bc\x1b[1;2;3;4;5T", "ab"),
        # the same as single characters, in UTF-8 and not
        ("a\x9b6n\x9d52;c;x\x9cb\x90x\x9c\x9a", "a6nb"),
        (b"a\x9b6n\x9d0;x\x07b", "a�6n�0;x\ab"),
        ("a\x00\x01\x7f\x85\x0b\x0c\x11\x13b", "ab"),
        # cut short, and mixed into one another
        ("a\x1b", "a"),
        ("a\x1b[12;", "a"),
        ("a\x1b[\x1b[31mb", "a[\x1b[31mb"),
        ("a\x1b]0;x\x1b[31mb", "a\x1b[31mb"),
        ("a\x1b\x1b[6nb", "ab"),
        ("a\x1b[6\x00nb", "a[6nb"),
        ("a\x1b[" + "1" * 200 + "mb", "ab"),
    ],
)
def test_what_does_more_than_draw_does_not(data: str | bytes, left: str) -> None:
    for seed in range(10):
        if seed == 0 or "1" * 200 not in str(data):  # a sequence that never ends is let go of somewhere
            assert shown(data, random.Random(seed) if seed else None) == left


def test_nothing_that_comes_out_is_more_than_a_picture_however_it_was_cut_and_mixed() -> None:
    parts = [
        "\x1b",
        "[",
        "]",
        "P",
        "\\",
        "\x07",
        "6n",
        "52;c;",
        "\x9b",
        "\x9d",
        "c",
        "?",
        ">",
        "q",
        "m",
        "3J",
        "t",
        ";",
        "x",
    ]
    chance = random.Random(7)
    for _ in range(3000):
        data = "".join(chance.choices(parts, k=12))
        once = shown(data, chance)
        assert shown(once) == once, (data, once)
        assert "\x1b]" not in once
        assert "\x1bP" not in once


def test_held_back_is_only_what_may_go_on() -> None:
    screen = Shown()
    assert screen.feed(b"a\x1b[3") == b"a"
    assert screen.feed(b"1mb") == b"\x1b[31mb"
    assert screen.feed(b"\x1b[" + b"1" * 100) == b""
    assert screen.feed("ü".encode()[:1]) == b""
    assert screen.feed("ü".encode()[1:]) == "ü".encode()


def test_what_was_left_switched_is_undone() -> None:
    screen = Shown()
    screen.feed(b"\x1b[?1049h\x1b[?1000;1006h\x1b[?25l\x1b=\x1b[2;5r\x1b[4h\x1b[>4;2m\x1b[5 q")
    undone = screen.undo().decode()
    for wanted in ("?1049l", "?1000l", "?1006l", "?25h", "4l", ">4m", "0 q", "r", "m"):
        assert f"\x1b[{wanted}" in undone
    assert "\x1b>" in undone


def test_a_terminal_that_was_given_back_is_left_alone() -> None:
    screen = Shown()
    screen.feed(b"\x1b[?1049h\x1b[?25l\x1b=\x1b[2;5r\x1b[>4;2mx")
    screen.feed(b"\x1b[>4;0m\x1b[r\x1b>\x1b[34h\x1b[?25h\x1b[?1049l[detached]\r\n")
    assert screen.undo() == b""
