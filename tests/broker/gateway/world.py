"""A broker on a real bridge, in a network of its own: a user, network and mount namespace made for one test.

`in_world` runs a test's coroutine in a forked child. There every address is local, so an origin can serve on any; port
53 is free, so the broker's own resolver asks a name server of the test; and the client's calls are made from inside the
sandbox's namespace. Only the runner is played; bridge, hand-over, broker, log and resolver are the real ones.
"""

import asyncio
import functools
import inspect
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import tomllib
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Concatenate

import uvloop

from broker.audit.log import AuditLog
from broker.control.messages import Attach, Attached, Finish, Finished, FromBroker, Greeting, decode_from_broker, encode
from broker.gateway.attach import AttachConnection
from broker.gateway.broker import Broker
from broker.gateway.inspector import Inspector
from broker.gateway.resolve import Resolver, make_absolute
from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.load import parse_policy
from broker.policy.rules import Policy
from certs.store import trusted_pem
from netns import handoff
from netns.bridge import Bridge, build_bridge
from tests.origins.certificates import make_certificates
from tests.origins.dns_origin import RECORDS, Zone
from tests.origins.serving import server_context

PUBLIC = "93.184.215.14"  # what the name server's table answers for public names; local to this world
PATIENCE = 60.0
CERTIFIED = ("public4.example", "public.example", "alias.example", "*.public4.example", PUBLIC)

type Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RecordingZone(Zone):
    """The upstream name server's table, and who asked for what."""

    def __init__(self) -> None:
        super().__init__(tomllib.loads(RECORDS.read_text("utf-8")))
        self.asked: list[bytes] = []

    def answer(self, wire: bytes, *, transport: str) -> bytes | None:
        self.asked.append(wire)
        return super().answer(wire, transport=transport)


@dataclass
class Origin:
    """A raw TCP origin: every octet that each connection received."""

    port: int
    received: list[bytearray] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def forget(self) -> None:
        """Begin anew. Connections that the broker keeps open go on recording."""
        for one in self.received:
            one.clear()

    @property
    def text(self) -> bytes:
        """All that came since, of all connections in the order in which they were opened."""
        return b"".join(bytes(one) for one in self.received)


class World:
    """What a test has in its hands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names = RecordingZone()
        self.bridge: Bridge | None = None
        self.lease: socket.socket | None = None
        self._threads = ThreadPoolExecutor(32)
        self._inside = ThreadPoolExecutor(32, initializer=self._enter)

    def _enter(self) -> None:
        assert self.bridge is not None
        os.setns(self.bridge.sandbox_fd, os.CLONE_NEWNET)

    async def inside[**P, R](self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Make a blocking call from inside the sandbox's network namespace."""
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(
            loop.run_in_executor(self._inside, functools.partial(call, *arguments, **named)), PATIENCE
        )

    @asynccontextmanager
    async def broker(
        self, rules: str, *, fixed: Mapping[Authority, tuple[Address, ...]] | None = None, inspect: bool = False
    ) -> AsyncIterator[Broker]:
        """A broker that serves one session under a policy of `rules` (the text of a policy file after its head).

        With `inspect` it terminates TLS, and trusts the origins of `certificates`.
        """
        policy: Policy = parse_policy(f"version = 1\n[egress]\nenabled = true\n{rules}", source="test")
        loop = asyncio.get_running_loop()
        log = AuditLog.open(self.directory / "audit")
        broker = Broker(
            loop,
            policy=policy,
            log=log,
            log_location=str(self.directory / "audit"),
            resolver=Resolver(policy.limits, fixed),
            inspector=Inspector(self.directory / "authority", (self.certificates,)) if inspect else None,
        )
        mine, theirs = handoff.pair()
        self.lease = mine
        AttachConnection(broker, theirs)
        assert isinstance(await self._hear(), Greeting)
        self.bridge = await loop.run_in_executor(self._threads, build_bridge)
        answer = await self.tell(Attach(session="test", call="call-1"), self.bridge.listeners.descriptors())
        assert isinstance(answer, Attached), answer
        self.bridge.listeners.close()
        try:
            yield broker
        finally:
            mine.close()
            broker.close()
            self.bridge.close()

    @functools.cached_property
    def certificates(self) -> bytes:
        """The authority of this world's origins (PEM). Made with one leaf for every name in `CERTIFIED`."""
        make_certificates(self.directory, CERTIFIED)
        return (self.directory / "ca.pem").read_bytes()

    def server_context(self, *alpn: str) -> ssl.SSLContext:
        """What an origin serves TLS with."""
        assert self.certificates
        return server_context(self.directory, alpn)

    def client_context(self, *alpn: str) -> ssl.SSLContext:
        """What a client in the sandbox trusts: the broker's authority alone."""
        known = trusted_pem(self.directory / "authority", datetime.now(UTC))
        assert known is not None
        context = ssl.create_default_context(cadata=known.decode())
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    async def tell(self, message: Attach | Finish, descriptors: list[int] | None = None) -> FromBroker:
        """Say something as the runner, and wait for the answer."""
        assert self.lease is not None
        handoff.send(self.lease, encode(message), descriptors)
        return await self._hear()

    async def _hear(self) -> FromBroker:
        assert self.lease is not None
        loop = asyncio.get_running_loop()
        self.lease.settimeout(PATIENCE)
        answer, _ = await loop.run_in_executor(self._threads, handoff.receive, self.lease)
        decoded: FromBroker = decode_from_broker(answer)
        return decoded

    async def finish(self) -> Finished:
        """End the session as the runner does, and return its counts."""
        answer = await self.tell(Finish(refused=0))
        assert isinstance(answer, Finished), answer
        return answer

    def records(self, kind: str = "decision") -> list[dict[str, Any]]:
        """What the log says so far."""
        found = []
        for path in sorted((self.directory / "audit").glob("*.jsonl")):
            found += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [one for one in found if one["kind"] == kind]

    @asynccontextmanager
    async def origin(
        self, behave: Behaviour, *, address: str = PUBLIC, port: int = 80, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Origin]:
        """A TCP server. `behave` reads through what it is given, so that every octet is on record."""
        seen = Origin(port)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.received.append(got := bytearray())
            feed = reader.feed_data

            def feed_data(data: bytes) -> None:
                got.extend(data)
                feed(data)

            reader.feed_data = feed_data  # type: ignore[method-assign, assignment]
            # What had arrived before this line is in the buffer already.
            got.extend(reader._buffer)  # type: ignore[attr-defined]
            try:
                await behave(reader, writer)
                seen.ended.append("served")
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                seen.ended.append(type(error).__name__)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, address, port, ssl=tls)
        seen.port = server.sockets[0].getsockname()[1]
        try:
            yield seen
        finally:
            server.close()


def _serve_names(zone: RecordingZone) -> None:
    """Answer in a thread of its own: the loop belongs to the broker."""
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))

    def serve() -> None:
        while True:
            query, client = names.recvfrom(4096)
            answer = zone.answer(query, transport="udp")
            if answer is not None:
                names.sendto(answer, client)

    threading.Thread(target=serve, daemon=True).start()


@contextmanager
def _mounted(directory: Path) -> Iterator[None]:
    (directory / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch search.example\n")
    (directory / "hosts").write_text("127.0.0.1 localhost\n")
    (directory / "nsswitch.conf").write_text("hosts: files dns\n")
    for name in ("resolv.conf", "hosts", "nsswitch.conf"):
        subprocess.run(["mount", "--bind", directory / name, Path("/etc", name).resolve()], check=True)
    yield


def _become_alone() -> None:
    """Enter a user namespace in which this user is uid 0, with a network and a mount table of its own."""
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo"], check=True)


async def _run(scenario: Callable[[World], Awaitable[None]], directory: Path) -> None:
    world = World(directory)
    _serve_names(world.names)
    await scenario(world)


def in_world[**P](
    scenario: Callable[Concatenate[World, P], Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    """Make a coroutine that takes a world (and keyword arguments) an ordinary test."""

    def test(*arguments: P.args, **named: P.kwargs) -> None:
        report, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            _child(writer, lambda world: scenario(world, *arguments, **named))
        os.close(writer)
        with os.fdopen(report, encoding="utf-8") as text:
            told = text.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, told

    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    signature = inspect.signature(scenario)
    kept = [one for name, one in signature.parameters.items() if name != "world"]
    test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return test


def _child(writer: int, scenario: Callable[[World], Awaitable[None]]) -> None:
    status = 1
    try:
        with tempfile.TemporaryDirectory() as place:
            _become_alone()
            with _mounted(Path(place)):
                make_absolute()
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(asyncio.wait_for(_run(scenario, Path(place)), PATIENCE))
        status = 0
    except BaseException:
        os.write(writer, traceback.format_exc().encode()[-60000:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def exchange(address: tuple[str, int], data: bytes, *, end: bool = False, timeout: float = 20) -> bytes:
    """Send octets and read to the end. A reset ends it like an end of data does, and shows as `RESET` behind it."""
    try:
        sock = socket.create_connection(address, timeout)
    except ConnectionResetError:  # refused in the turn in which it was accepted
        return b"RESET"
    with sock:
        with suppress(ConnectionError):  # refused before all was sent: the answer may be there already
            sock.sendall(data)
            if end:
                sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    got = b""
    try:
        while piece := sock.recv(65536):
            got += piece
    except ConnectionResetError:
        return got + b"RESET"
    return got


def look_up(name: str) -> str:
    """Ask the session's name server for a name's address, by a query of our own: the C library is the broker's."""
    packet = b"\x12\x34\1\0\0\1\0\0\0\0\0\0"
    packet += b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.sendto(packet, ("198.19.255.1", 53))
        answer = sock.recv(600)
    assert answer[3] & 15 == 0, answer
    return str(IPv4Address(answer[len(packet) + 12 :][:4]))
