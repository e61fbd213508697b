"""What bubblewrap is given by descriptor: it reads that and no more, and tells by closing it."""

import os
import select

from sandbox.supplies import MOST_SENT, file, hold, supply_all


class Supplied(list[int]):
    def supply(self, fd: int) -> int:
        self.append(fd)
        return len(self)


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as whole:
        return whole.read()


def test_a_file_is_read_from_its_beginning() -> None:
    assert read_all(file(b"content")) == b"content"
    assert read_all(file(b"")) == b""


def test_files_are_supplied_in_their_order() -> None:
    supplied = Supplied()
    assert supply_all([b"a", b"", b"c"], supplied.supply, told=False) is None
    assert [read_all(fd) for fd in supplied] == [b"a", b"", b"c"]


def test_the_last_one_tells_when_it_is_closed() -> None:
    supplied = Supplied()
    near = supply_all([b"a", b"last"], supplied.supply, told=True)
    assert near is not None
    with near:
        assert not is_readable(near.fileno())
        assert [read_all(fd) for fd in supplied] == [b"a", b"last"]
        assert is_readable(near.fileno())


def test_one_that_no_socket_takes_at_once_tells_nothing() -> None:
    supplied = Supplied()
    assert supply_all([bytes(MOST_SENT + 1)], supplied.supply, told=True) is None
    assert [len(read_all(fd)) for fd in supplied] == [MOST_SENT + 1]


def test_what_is_held_goes_on_at_a_byte_and_at_nothing_else() -> None:
    waits, release = hold()
    try:
        assert not is_readable(waits)
        os.write(release, b"\n")
        assert is_readable(waits)
        os.read(waits, 1)
        os.close(release)
        release = -1
        assert not is_readable(waits), "the end of whoever holds it let it go"
    finally:
        os.close(waits)
        if release >= 0:
            os.close(release)
