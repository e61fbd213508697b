"""Handing sockets over: whole messages with their descriptors, or nothing, and no descriptor left behind."""

import array
import os
import socket
from collections.abc import Iterator

import pytest

from netns import handoff


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = handoff.pair()
    with one, other:
        yield one, other


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def send_raw(connection: socket.socket, message: bytes, descriptors: list[int]) -> None:
    rights = array.array("i", descriptors)
    connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def test_a_message_and_its_descriptors_arrive_together(ends: tuple[socket.socket, socket.socket]) -> None:
    reading, writing = os.pipe()
    handoff.send(ends[0], b"take this", [writing])
    handoff.send(ends[0], b"and nothing")
    message, (taken,) = handoff.receive(ends[1])
    assert message == b"take this"
    assert not os.get_inheritable(taken)
    os.write(taken, b"through")
    assert os.read(reading, 10) == b"through"
    for fd in (reading, writing, taken):
        os.close(fd)
    assert handoff.receive(ends[1]) == (b"and nothing", [])


def test_the_end_of_the_peer_is_an_empty_message(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert handoff.receive(ends[1]) == (b"", [])


@pytest.mark.parametrize("count", [handoff.MAX_DESCRIPTORS + 1, 100, 253])
def test_too_many_descriptors_are_refused_and_none_stays(ends: tuple[socket.socket, socket.socket], count: int) -> None:
    before = open_descriptors()
    send_raw(ends[0], b"flood", [0] * count)
    with pytest.raises(handoff.HandoffError):
        handoff.receive(ends[1])
    assert open_descriptors() == before


def test_a_message_that_is_too_long_is_refused_and_its_descriptors_closed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    before = open_descriptors()
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    send_raw(ends[0], bytes(handoff.MAX_MESSAGE + 1), [0, 1])
    with pytest.raises(handoff.HandoffError):
        handoff.receive(ends[1])
    assert open_descriptors() == before


def test_the_longest_message_passes(ends: tuple[socket.socket, socket.socket]) -> None:
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    handoff.send(ends[0], bytes(handoff.MAX_MESSAGE))
    assert handoff.receive(ends[1]) == (bytes(handoff.MAX_MESSAGE), [])


def test_the_sender_refuses_what_the_receiver_would(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(handoff.HandoffError):
        handoff.send(ends[0], bytes(handoff.MAX_MESSAGE + 1))
    with pytest.raises(handoff.HandoffError):
        handoff.send(ends[0], b"x", [0] * (handoff.MAX_DESCRIPTORS + 1))
