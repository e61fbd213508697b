"""The runner that tests play: `python -m tests.live.attached_runner SOCKET SESSION GRANT CALL`.

One JSON command a line on standard input, one answer a line on standard output. The bridge and the attachment are the
product's own; requests are made by plain sockets from inside the sandbox's network namespace.
"""

import asyncio
import json
import os
import select
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from netns.bridge import Bridge, build_bridge
from netns.kernel import enter_user_namespace
from sandbox.attachment import AttachError, Attachment, State
from wicketgate.identity import serving_identity

GATE = "198.19.255.1"
PATIENCE = 60.0


def look_up(name: str) -> str:
    """The synthetic address of a name, asked of the session's name server."""
    packet = b"\x12\x34\1\0\0\1\0\0\0\0\0\0"
    packet += b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect((GATE, 53))
        sock.send(packet)
        answer = sock.recv(600)
    return str(IPv4Address(answer[len(packet) + 12 :][:4]))


def status_of(name: str, port: int, target: str = "/") -> int:
    """The status of one plain request, 0 where the connection ends without one."""
    with socket.create_connection((look_up(name), port), PATIENCE) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
        head = sock.recv(65536)
        while sock.recv(65536):
            pass
    return int(head.split()[1]) if head else 0


class Runner:
    def __init__(self, bridge: Bridge, attachment: Attachment) -> None:
        self._bridge = bridge
        self._attachment = attachment
        self._changes: list[str] = []
        self._changed = asyncio.Event()
        self._tunnels: list[socket.socket] = []
        self._silent: list[socket.socket] = []
        attachment.on_change = self._on_change
        self._inside = ThreadPoolExecutor(32, initializer=lambda: os.setns(bridge.sandbox_fd, os.CLONE_NEWNET))

    def _on_change(self, state: State, why: str) -> None:
        self._changes.append(f"{state.value}: {why}" if why else state.value)
        self._changed.set()

    async def in_sandbox(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._inside, call, *arguments)

    async def attach(self, grant: str | None = None) -> Any:
        if grant is not None:
            self._attachment.grant = grant
        try:
            await self._attachment.attach()
        except AttachError as error:
            return {"reason": error.reason, "detail": error.detail}
        return {"authority": self._attachment.authority.decode()}

    async def wait_for(self, state: str) -> Any:
        """Wait until the attachment is in a state; all changes so far."""
        async with asyncio.timeout(PATIENCE):
            while self._attachment.state.value != state:
                self._changed.clear()
                await self._changed.wait()
        return self._changes

    async def request(self, name: str, port: int, target: str = "/") -> Any:
        """The status, or the name of the error that a payload would meet."""
        try:
            return await self.in_sandbox(status_of, name, port, target)
        except OSError as error:
            return type(error).__name__

    async def flood(self, name: str, port: int, clients: int, each: int) -> Any:
        """Statuses of `clients` times `each` kept-alive requests, made at once."""
        address = await self.in_sandbox(look_up, name)

        def connect() -> socket.socket:
            return socket.create_connection((address, port), PATIENCE)

        socks = [await self.in_sandbox(connect) for _ in range(clients)]
        counted: Counter[str] = Counter()

        async def client(sock: socket.socket) -> None:
            reader, writer = await asyncio.open_connection(sock=sock)
            for _ in range(each):
                writer.write(f"GET / HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    words = head.split(b"\r\n")
                    length = next(
                        int(line.split(b":")[1]) for line in words if b"ontent-" in line and b"ength:" in line
                    )
                    await reader.readexactly(length)
                except (asyncio.IncompleteReadError, ConnectionError):
                    counted["closed"] += 1
                    break
                counted[head.split()[1].decode()] += 1
            writer.close()

        await asyncio.gather(*map(client, socks))
        return dict(counted)

    async def open_tunnels(self, name: str, port: int, count: int) -> Any:
        """Begin TLS on that many connections; they are spliced, so the origin need not answer. Their number."""
        address = await self.in_sandbox(look_up, name)
        hello = client_hello(name)

        def connect() -> list[socket.socket]:
            made = []
            for _ in range(count):
                sock = socket.create_connection((address, port), PATIENCE)
                sock.sendall(hello)
                sock.settimeout(PATIENCE)
                assert sock.recv(1) == b"."
                made.append(sock)
            return made

        self._tunnels = await self.in_sandbox(connect)
        return len(self._tunnels)

    async def knock(self, port: int, count: int) -> Any:
        """Open connections and say nothing on them; how many are open at the end."""

        def connect() -> int:
            for _ in range(count):
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                sock.connect_ex(("192.0.2.1", port))
                self._silent.append(sock)
            poll = select.poll()
            for sock in self._silent:
                poll.register(sock, select.POLLOUT)
            return len(poll.poll(PATIENCE * 1000))

        return await self.in_sandbox(connect)

    async def watch_tunnels(self) -> Any:
        """Wait until the last tunnel is gone: when, on the machine's monotonic clock, and how they ended."""
        poll = select.epoll()
        left = {sock.fileno(): sock for sock in self._tunnels}
        for fd in left:
            poll.register(fd, select.EPOLLIN)
        print(json.dumps({"result": "watching"}), flush=True)

        def watch() -> Any:
            ends: Counter[str] = Counter()
            deadline = time.monotonic() + PATIENCE
            while left and time.monotonic() < deadline:
                for fd, _ in poll.poll(0.1):
                    try:
                        ends["data" if left[fd].recv(10) else "end"] += 1
                    except ConnectionResetError:
                        ends["reset"] += 1
                    poll.unregister(fd)
                    left.pop(fd).close()
            return {"at": time.monotonic(), "left": len(left), **ends}

        return await asyncio.to_thread(watch)

    async def refused_connect(self, port: int) -> Any:
        """What a connection to any address meets: the name of the error, or nothing."""

        def connect() -> str:
            try:
                socket.create_connection(("192.0.2.1", port), 5).close()
            except OSError as error:
                return type(error).__name__
            return ""

        return await self.in_sandbox(connect)

    async def finish(self) -> Any:
        finished = await self._attachment.finish()
        return None if finished is None else {"allowed": finished.allowed, "denied": finished.denied}

    async def times(self) -> Any:
        return self._attachment.attached_times


def client_hello(name: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError


def preload() -> None:
    """After the change of user this interpreter may be unreadable."""
    "example".encode("idna")
    asyncio.to_thread, client_hello("preload.example")


async def serve(bridge: Bridge, words: list[str]) -> None:
    path, session, grant, call = words
    runner = Runner(bridge, Attachment(bridge=bridge, socket_path=Path(path), session=session, grant=grant, call=call))
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        do: Callable[..., Awaitable[Any]] = getattr(runner, command.pop("do"))
        try:
            answer = {"result": await do(**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def main() -> None:
    preload()
    serving_identity().become()  # as a runner of root's does
    enter_user_namespace()
    with build_bridge() as bridge:
        asyncio.run(serve(bridge, sys.argv[1:]))


if __name__ == "__main__":
    main()
