"""Leases on the attach socket that never carry a session, and what a running session's lease is told."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.control import schema
from broker.control.messages import Attach, Finish, encode
from broker.policy.reasons import Reason
from broker.workers.reception import Reception
from tests.broker.control.serving import PEER, Api, served


class Runner:
    """A runner's end of a connection that was let in."""

    def __init__(self, api: Api) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        self.reception = Reception(theirs, b"", api.operations.workers.place)

    async def hear(self) -> dict[str, str]:
        async with asyncio.timeout(10):
            message = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
        return json.loads(message) if message else {}

    async def attach(self, session: str) -> dict[str, str]:
        with listeners() as descriptors:
            socket.send_fds(self.sock, [encode(Attach(session=session))], descriptors)
        return await self.hear()


@contextmanager
def let_in(api: Api) -> Iterator[Runner]:
    runner = Runner(api)
    try:
        yield runner
    finally:
        runner.sock.close()


@contextmanager
def listeners() -> Iterator[list[int]]:
    with socket.create_server(("127.0.0.1", 0)) as capture, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        yield [capture.fileno(), names.fileno()]


async def test_a_lease_without_a_session_is_closed_and_one_with_a_session_is_not(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        with let_in(api) as runner:
            assert (await runner.hear())["type"] == "greeting"
            runner.reception.close()
            assert await runner.hear() == {}
        with let_in(api) as runner:
            await runner.hear()
            assert (await runner.attach("s-1"))["type"] == "attached"
            runner.reception.close()
            assert api.operations.workers.attached == ["s-1"]
            assert (await api.operations.show_session(PEER, id="s-1")).id == "s-1"


@pytest.mark.parametrize("how", ["flag", "cut"])
async def test_a_lease_is_told_why_its_session_is_over(tmp_path: Path, how: str) -> None:
    async with served(tmp_path) as api:
        with let_in(api) as runner:
            await runner.hear()
            assert (await runner.attach("s-1"))["type"] == "attached"
            if how == "flag":
                await api.operations.switch_egress(PEER, schema.SwitchEgress(enabled=False))
            else:
                await api.operations.cut_session(PEER, id="s-1")
            told = await runner.hear()
            reason = Reason.EGRESS_OFF if how == "flag" else Reason.SESSION_ENDED
            assert (told["type"], told["reason"]) == ("ended", str(reason))
            assert await runner.hear() == {}
        assert api.operations.workers.attached == []


async def test_one_session_has_one_lease(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        with let_in(api) as first, let_in(api) as second:
            await first.hear()
            await second.hear()
            assert (await first.attach("s-1"))["type"] == "attached"
            refused = await second.attach("s-1")
            assert (refused["type"], refused["reason"]) == ("rejected", "bad_request")
            assert (await first.attach("s-2"))["type"] == "rejected"
            assert api.operations.workers.attached == ["s-1"]
            assert (await second.attach("s-2"))["type"] == "attached"


async def test_an_end_that_was_told_is_known_before_the_next_session_comes(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for _ in range(20):
            with let_in(api) as runner:
                await runner.hear()
                assert (await runner.attach("s-1"))["type"] == "attached"
                runner.sock.send(encode(Finish()))
                assert (await runner.hear())["type"] == "finished"


async def test_a_refused_connection_carries_no_other_session(tmp_path: Path) -> None:
    """The daemon has let go of it: whatever else came on it would pass by its books."""
    async with served(tmp_path) as api:
        await api.operations.switch_egress(PEER, schema.SwitchEgress(enabled=False))
        with let_in(api) as runner:
            await runner.hear()
            assert (await runner.attach("s-1"))["reason"] == "egress_off"
            await api.operations.switch_egress(PEER, schema.SwitchEgress(enabled=True))
            assert (await runner.attach("s-1"))["reason"] == "bad_request"
            assert api.operations.workers.attached == []


@pytest.mark.parametrize("message", [b"{", b'{"type":"finish"}', b'{"type":"attach","session":"' + b"s" * 70_000])
async def test_what_is_no_session_is_refused_and_taken_with_its_descriptors(tmp_path: Path, message: bytes) -> None:
    async with served(tmp_path) as api:
        with let_in(api) as runner, listeners() as descriptors:
            await runner.hear()
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                socket.send_fds(runner.sock, [message], descriptors)
                assert (await runner.hear())["reason"] == "bad_request"
            assert len(os.listdir("/proc/self/fd")) == before
            assert (await runner.attach("s-1"))["type"] == "attached"
