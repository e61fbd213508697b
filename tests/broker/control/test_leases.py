"""Leases on the attach socket that never carry a session, and what a running session's lease is told."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.control.messages import Attach, encode
from broker.control.operations import with_flag
from broker.gateway.attach import AttachConnection
from broker.policy.reasons import Reason
from tests.broker.control.serving import Api, served


@contextmanager
def leased(api: Api) -> Iterator[tuple[AttachConnection, socket.socket]]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.settimeout(10)
    lease = AttachConnection(api.operations.broker, theirs)
    assert json.loads(mine.recv(65536))["type"] == "greeting"
    try:
        yield lease, mine
    finally:
        mine.close()


@contextmanager
def listeners() -> Iterator[list[int]]:
    with socket.create_server(("127.0.0.1", 0)) as capture, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        yield [capture.fileno(), names.fileno()]


def attach(lease: AttachConnection, mine: socket.socket, message: Attach) -> dict[str, str]:
    with listeners() as descriptors:
        socket.send_fds(mine, [encode(message)], descriptors)
    lease.on_event(0)
    answer: dict[str, str] = json.loads(mine.recv(65536))
    return answer


async def test_a_lease_without_a_session_is_closed_and_one_with_a_session_is_not(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        with leased(api) as (lease, mine):
            lease.close_unused()
            assert mine.recv(10) == b""
        with leased(api) as (lease, mine):
            assert attach(lease, mine, Attach(session="s-1"))["type"] == "attached"
            lease.close_unused()
            assert list(api.operations.broker.sessions) == ["s-1"]


@pytest.mark.parametrize("how", ["flag", "cut"])
async def test_a_lease_is_told_why_its_session_is_over(tmp_path: Path, how: str) -> None:
    async with served(tmp_path) as api:
        broker = api.operations.broker
        with leased(api) as (lease, mine):
            assert attach(lease, mine, Attach(session="s-1"))["type"] == "attached"
            if how == "flag":
                broker.change_policy(with_flag(api.operations.policy, enabled=False))
            else:
                broker.cut_session(broker.sessions["s-1"], "cut")
            told = json.loads(mine.recv(65536))
            reason = Reason.EGRESS_OFF if how == "flag" else Reason.SESSION_ENDED
            assert (told["type"], told["reason"]) == ("ended", str(reason))
            assert mine.recv(10) == b""
        assert not broker.sessions


async def test_one_session_has_one_lease(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        with leased(api) as (first, one), leased(api) as (second, other):
            assert attach(first, one, Attach(session="s-1"))["type"] == "attached"
            refused = attach(second, other, Attach(session="s-1"))
            assert (refused["type"], refused["reason"]) == ("rejected", "bad_request")
            assert attach(first, one, Attach(session="s-2"))["type"] == "rejected"
            assert list(api.operations.broker.sessions) == ["s-1"]
