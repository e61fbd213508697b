"""A job's log: any way of writing gives the same whole; what is cut is exactly what is missing."""

import contextlib
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.joblog import JobLog, read_pieces


def write(directory: Path, data: bytes, bound: int, chance: random.Random) -> JobLog:
    log = JobLog(directory, bound)
    at = 0
    while at < len(data):
        size = chance.randint(1, 400)
        log.write(data[at : at + size])
        at += size
    log.close()
    return log


@pytest.mark.parametrize("size", [0, 1, 599, 600, 601, 1200, 1201, 5000, 20_000])
def test_what_is_kept_is_the_beginning_and_the_end(tmp_path: Path, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    log = write(tmp_path, data, 1200, random.Random(size))
    pieces = list(read_pieces(tmp_path, 0))
    kept = b"".join(piece.data for piece in pieces)
    assert log.size == size
    assert log.dropped == sum(piece.cut for piece in pieces) == size - len(kept)
    assert len(kept) <= 1200
    assert kept[:600] == data[:600]
    assert size == 0 or data.endswith(kept[-min(len(kept), 400) :])
    for piece in pieces:
        assert data[piece.offset : piece.offset + len(piece.data)] == piece.data


def test_reading_on_from_anywhere(tmp_path: Path) -> None:
    data = bytes(number % 251 for number in range(5000))
    write(tmp_path, data, 1200, random.Random(1))
    for offset in range(0, 5100, 7):
        at = offset
        for piece in read_pieces(tmp_path, offset):
            assert piece.offset == at + piece.cut
            assert data[piece.offset : piece.offset + len(piece.data)] == piece.data
            at = piece.offset + len(piece.data)
        assert at == max(offset, 5000)


@pytest.mark.parametrize("room", [0, 1, 300, 600, 700, 1199])
def test_what_a_full_disk_does_not_take_is_cut_and_counted(tmp_path: Path, room: int) -> None:
    """The disk is full for a while (RLIMIT_FSIZE does it, file by file), and then there is room again."""
    data = bytes(number % 251 for number in range(3000))
    log = JobLog(tmp_path, 1200)
    log.write(data[:room])
    with no_room():
        for at in range(room, 1500, 100):
            log.write(data[at : at + 100])
    full = max(1500, log.size)
    log.write(data[full : full + 450])
    log.close()
    pieces = list(read_pieces(tmp_path, 0))
    kept = b"".join(piece.data for piece in pieces)
    assert log.size == full + 450
    assert log.dropped == sum(piece.cut for piece in pieces) == log.size - len(kept)
    assert all(data[piece.offset : piece.offset + len(piece.data)] == piece.data for piece in pieces)
    assert kept.startswith(data[: min(room, 600)]), "nothing that was there goes for it"
    assert kept.endswith(data[full : full + 450]), "and what came afterwards is there"


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file of this process grows (setrlimit(2))."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
