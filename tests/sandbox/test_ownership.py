"""The mapping behind a lent workspace, and who may pass a directory."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from sandbox.ownership import first_barrier, mapping, may_enter

WHOLE = [(0, 4294967295)]


@pytest.mark.parametrize(
    ("owner", "serving", "ranges", "expected"),
    [
        (0, 64321, WHOLE, "0 64321 1\n1 1 64320\n64322 64322 4294902973\n"),
        (70000, 64321, WHOLE, "70000 64321 1\n0 0 64321\n64322 64322 5678\n70001 70001 4294897294\n"),
        (64322, 64321, WHOLE, "64322 64321 1\n0 0 64321\n64323 64323 4294902972\n"),
        (64321, 64321, WHOLE, "0 0 4294967295\n"),
        (0, 5, [(0, 6)], "0 5 1\n1 1 4\n"),
        (0, 15, [(0, 10), (12, 8)], "0 15 1\n1 1 9\n12 12 3\n16 16 4\n"),
        (4294967294, 0, WHOLE, "4294967294 0 1\n1 1 4294967293\n"),
    ],
)
def test_mapping(owner: int, serving: int, ranges: list[tuple[int, int]], expected: str) -> None:
    assert mapping(owner, serving, ranges) == expected


@pytest.mark.parametrize(("owner", "serving"), [(0, 64321), (64321, 0), (7, 8), (8, 7), (5, 5), (0, 4294967294)])
def test_a_mapping_never_shows_two_owners_as_one(owner: int, serving: int) -> None:
    """On either side every id occurs at most once (user_namespaces(7) refuses anything else)."""
    rows = [tuple(map(int, row.split())) for row in mapping(owner, serving, WHOLE).splitlines()]
    for side in (0, 1):
        spans = sorted((row[side], row[side] + row[2]) for row in rows)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    shown = {row[0]: row[1] for row in rows if row[2] == 1}
    assert owner == serving or shown[owner] == serving
    assert all(row[2] > 0 for row in rows)


def status(mode: int, uid: int, gid: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 0, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "bits", "expected"),
    [
        (0o700, 1, 2, 1, True),
        (0o077, 1, 2, 1, False),  # the owner's bits count for the owner, however open the rest is
        (0o070, 9, 2, 7, True),
        (0o707, 9, 2, 1, False),
        (0o007, 9, 9, 7, True),
        (0o005, 9, 9, 7, False),
        (0o001, 9, 9, 1, True),
    ],
)
def test_may_enter(mode: int, uid: int, gid: int, bits: int, expected: bool) -> None:
    assert may_enter(status(0o40000 | mode, uid, gid), 1, 2, bits=bits) is expected


def test_the_topmost_closed_directory_is_the_barrier(tmp_path: Path) -> None:
    workspace = tmp_path / "closed" / "closed too" / "work"
    workspace.mkdir(parents=True)
    stranger = 54321
    for path in (workspace.parent, workspace.parent.parent):
        path.chmod(0o700)
    found = first_barrier(workspace, stranger, stranger)
    assert found is not None
    assert found in {*workspace.parents}
    assert not found.stat().st_mode & 0o001
    assert all(above.stat().st_mode & 0o001 for above in found.parents)
