"""What is told arrives unchanged, with the descriptors of whoever hears it."""

import os

from netns import handoff
from sandbox.births import Birth, Entry
from sandbox.starter.messages import format_birth, format_entry, hear, parse_birth, parse_entry, read, tell

BIRTH = Birth(
    argv=("bwrap", "--args", "12", "--", "echo", "ä \udcff\n"),
    bwrap_fd=5,
    descriptors={0: 7, 12: 8},
    reset=(13, 2),
    rlimits=((4, 0, 0), (7, 64, 128)),
)
ENTRY = Entry(
    init=7,
    parent=6,
    argv=("/usr/bin/env", ""),
    environment=(("A", "1"), ("B", "")),
    directory="/srv",
    seccomp=bytes(range(256)),
    rlimits=((4, 0, 0),),
    stdio={0: 3, 1: 4, 2: 4},
    controlling=True,
    groups=("/sys/fs/cgroup/a/cgroup.procs",),
    oom_score_adj=900,
)


def told(document: dict[str, object], descriptors: list[int]) -> tuple[dict[str, object], list[int]]:
    """Through a channel, with descriptors that lead to nothing; which of them were heard, as they were told."""
    near, far = handoff.pair()
    null = os.open(os.devnull, os.O_RDONLY)
    with near, far:
        tell(near, "bear", document, [null] * len(descriptors))
        what, (content, *others) = hear(far)
    heard = read(content)
    for fd in (null, content, *others):
        os.close(fd)
    assert (what, len(others)) == (b"bear", len(descriptors))
    return heard, descriptors


def test_a_birth() -> None:
    assert parse_birth(*told(*format_birth(BIRTH))) == BIRTH
    within = BIRTH._replace(network=9)
    assert parse_birth(*told(*format_birth(within))) == within


def test_an_entry() -> None:
    assert parse_entry(*told(*format_entry(ENTRY, (13,), 11))) == (ENTRY, (13,), 11)


def test_the_end_is_no_word() -> None:
    near, far = handoff.pair()
    with far:
        near.close()
        assert hear(far) == (b"", [])


def test_what_comes_without_its_descriptors_has_none() -> None:
    near, far = handoff.pair()
    with near, far:
        near.send(b"bear")
        assert hear(far) == (b"bear", [])
