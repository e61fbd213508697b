"""Whose processes are a call's: told from two counts, whatever was forked in between."""

import pytest

from sandbox.census import Member, newcomers

# Process 1, and the session's first process: there before every call.
BASE = {1: Member(0, 10), 2: Member(1, 11)}


@pytest.mark.parametrize(
    ("what", "before", "after", "expected"),
    [
        ("nothing came", BASE, BASE, set()),
        ("what the call's first process has left", BASE, {**BASE, 6: Member(1, 21), 7: Member(6, 22)}, {6, 7}),
        ("forked twice: an orphan of process 1", BASE, {**BASE, 7: Member(1, 22)}, {7}),
        ("a server of an earlier call", {**BASE, 3: Member(1, 12)}, {**BASE, 3: Member(1, 12)}, set()),
        (
            "a worker of an earlier call's server",
            {**BASE, 3: Member(1, 12)},
            {**BASE, 3: Member(1, 12), 8: Member(3, 30)},
            set(),
        ),
        (
            "a number used again",
            {**BASE, 3: Member(1, 12)},
            {**BASE, 3: Member(1, 40)},
            {3},
        ),
        (
            "another call that runs at the same time, and one that is just born",
            BASE,
            {**BASE, 5: Member(0, 20), 6: Member(5, 21), 9: Member(0, 22), 10: Member(1, 23)},
            {10},
        ),
        ("another call with a number used again", {**BASE, 3: Member(0, 12)}, {**BASE, 3: Member(0, 40)}, set()),
        ("a loop of parents, read while it changed", BASE, {**BASE, 5: Member(6, 20), 6: Member(5, 21)}, {5, 6}),
    ],
)
def test_newcomers(what: str, before: dict[int, Member], after: dict[int, Member], expected: set[int]) -> None:
    assert newcomers(before, after, {1}) == expected, what


def test_what_a_terminals_shell_starts_counts_though_the_shell_is_older() -> None:
    before = {1: Member(0, 10), 2: Member(1, 11), 3: Member(2, 12)}  # tmux, and the shell in it
    after = {**before, 7: Member(3, 20), 8: Member(2, 21), 9: Member(1, 22)}
    assert newcomers(before, after, {1, 3}) == {7, 9}, "the copy of tmux itself is spared"
