"""A job's log: any way of writing gives the same whole; what is cut is exactly what is missing."""

import random
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
