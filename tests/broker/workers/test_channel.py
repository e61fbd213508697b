"""Messages of any size, with descriptors, between a broker's processes."""

import os
import socket
from collections.abc import Iterator

import pytest

from broker.workers.channel import PACKET, ChannelClosed, memory_file, pair, read_memory_file, receive, send


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = pair()
    with near, far:
        yield near, far


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [1, PACKET - 1, PACKET, PACKET + 1, 3 * PACKET, 20_000_000])
def test_a_message_of_any_size_comes_whole_and_with_its_descriptors(
    ends: tuple[socket.socket, socket.socket], size: int
) -> None:
    near, far = ends
    before = opened()
    content = bytes([65]) * size
    send(near, content, (near.fileno(),))
    message, (descriptor,) = receive(far)
    assert message == content
    assert os.path.samestat(os.fstat(descriptor), os.fstat(near.fileno()))
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert opened() == before


def test_nothing_there_and_nobody_there_are_told_apart(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    with pytest.raises(BlockingIOError):
        receive(far, wait=False)
    near.close()
    with pytest.raises(ChannelClosed):
        receive(far, wait=False)


def test_an_empty_message_with_descriptors_leaves_none_behind(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    before = opened()
    socket.send_fds(near, [b""], [near.fileno()])
    with pytest.raises(ChannelClosed):
        receive(far)
    assert opened() == before


def test_what_was_said_before_the_end_is_still_heard(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    for number in range(5):
        send(near, str(number).encode())
    near.close()
    assert [receive(far, wait=False)[0] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(ChannelClosed):
        receive(far, wait=False)


def test_a_full_channel_does_not_hold_up_who_does_not_want_to_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    near, _ = ends

    def fill() -> None:
        for _ in range(100_000):
            send(near, b"x" * 1000, wait=False)

    with pytest.raises(BlockingIOError):
        fill()


def test_nobody_can_change_what_a_memory_file_says() -> None:
    file = memory_file(b"policy")
    try:
        with pytest.raises(PermissionError):
            os.pwrite(file, b"P", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(file, 0)
        assert read_memory_file(file) == b"policy"
    finally:
        os.close(file)


def test_what_is_no_memory_file_is_not_read() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(ChannelClosed):
            read_memory_file(reading)
    finally:
        os.close(reading)
        os.close(writing)
