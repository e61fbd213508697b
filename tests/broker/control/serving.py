"""A control API served in the test's own process: the real operations, broker, log and store, and no door.

The peers' credentials, which the door would have asked the kernel for, are given here.
"""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
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
from broker.gateway.broker import Broker
from broker.gateway.resolve import Resolver
from broker.policy.document import parse_policy
from broker.policy.load import read_trusted

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
        for path in Path(self.operations.broker.log_location).glob("*.jsonl"):
            found += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [one for one in found if all(one.get(name) == value for name, value in wanted.items())]


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
    log = AuditLog.open(directory / "audit")
    parsed = parse_policy(policy, source=str(file))
    broker = Broker(
        loop,
        policy=parsed,
        log=log,
        log_location=str(directory / "audit"),
        resolver=Resolver(parsed.limits),
        find_meter=book.find_meter,
    )

    async def read() -> str:
        return read_trusted(str(file))

    operations = Operations(
        broker=broker,
        book=book,
        store=store,
        policy=parsed,
        source=str(file),
        read_policy=read,
        version="test",
        user_namespace=True,
    )
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
        broker.close()
        book.close()
