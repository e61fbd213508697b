"""A control API served in the test's own process: the real operations, broker, log and store, and no door.

The worker is a real one, too, in this process. The peers' credentials, which the door would have asked the kernel for,
are given here.
"""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.api.callers import Caller
from broker.audit.log import AuditLog
from broker.control.app import control_server
from broker.control.config import GrantLimits
from broker.control.grants import GrantBook
from broker.control.operations import Operations
from broker.control.store import Store
from broker.policy.document import parse_policy
from broker.policy.load import read_trusted
from broker.workers.channel import pair
from broker.workers.messages import Exited, Started
from broker.workers.pool import WorkerPool
from broker.workers.worker import Settings, Worker

POLICY = """
version = 1
[egress]
enabled = true

[[rule]]
name = "api"
action = "allow"
hosts = ["api.example.com", "*.pkg.example.net"]
ports = [443, 8443]
methods = ["GET", "POST"]
paths = ["/v1/**"]

[[rule]]
name = "mirror"
action = "allow"
hosts = ["mirror.example.com"]
ports = [80]

[[rule]]
name = "no-admin"
action = "deny"
hosts = ["admin.pkg.example.net"]
"""
PEER = Caller(uid=1234, gid=1234, pid=99)


class Api:
    """A served API. `socket` is where; `operations` what serves."""

    def __init__(self, directory: Path, operations: Operations) -> None:
        self.socket = directory / "control.sock"
        self.policy = directory / "policy.toml"
        self.operations = operations

    async def raw(self, data: bytes) -> bytes:
        """Send octets and read one answer."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        writer.write(data)
        try:
            async with asyncio.timeout(20):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
                return head + await reader.readexactly(length)
        finally:
            writer.close()

    def records(self, **wanted: str) -> list[dict[str, Any]]:
        """What the log says so far."""
        found = []
        for path in (self.policy.parent / "audit").glob("*.jsonl"):
            found += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [one for one in found if all(one.get(name) == value for name, value in wanted.items())]


class LocalStarter:
    """Runs each worker in the test's own process and loop: the real one, but for its process.

    So a grant cannot be used here: the worker would wait for a ledger that has to answer from the same thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.on_started: Callable[[Started], None] = lambda _: None
        self.on_exited: Callable[[Exited], None] = lambda _: None
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, worker: int) -> socket.socket:
        near, far = pair()
        task = asyncio.create_task(self._run(worker, far))
        self._tasks.add(task)
        return near

    def kill(self, worker: int) -> None:
        """Nothing: it ends when it is told to."""

    async def _run(self, number: int, channel: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        worker = Worker(channel, self._settings, loop)
        loop.add_reader(channel.fileno(), worker.on_readable)
        policies = asyncio.create_task(worker.take_policies())
        self.on_started(Started(number, os.getpid()))
        await worker.ended.wait()
        policies.cancel()
        loop.remove_reader(channel.fileno())
        worker.close()
        channel.close()
        self.on_exited(Exited(number, 0))


@asynccontextmanager
async def served(
    directory: Path, *, policy: str = POLICY, limits: GrantLimits | None = None, peer: Caller = PEER
) -> AsyncIterator[Api]:
    """Serve an API in `directory`, which is private to this test."""
    file = directory / "policy.toml"
    file.write_text(policy)
    file.chmod(0o600)
    loop = asyncio.get_running_loop()
    store = Store(directory)
    book = GrantBook(store, limits or GrantLimits(), time.time)
    parsed = parse_policy(policy, source=str(file))

    async def read() -> str:
        return read_trusted(str(file))

    workers = WorkerPool(LocalStarter(Settings(state=directory)), book, 1)
    operations = Operations(
        workers=workers,
        log=AuditLog.open(directory / "audit"),
        book=book,
        store=store,
        policy=parsed,
        source=str(file),
        read_policy=read,
        version="test",
        user_namespace=True,
    )
    await workers.switch(on=store.switched_on)
    await workers.take_policy(parsed)
    assert await workers.start()
    api = Api(directory, operations)
    control = control_server(operations, loop)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(api.socket))
    listener.listen()
    listener.setblocking(False)

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            await control.serve(sock, peer)

    accepting = asyncio.create_task(accept())
    try:
        yield api
    finally:
        accepting.cancel()
        listener.close()
        await control.close()
        await workers.stop()
        operations.log.close()
        book.close()
