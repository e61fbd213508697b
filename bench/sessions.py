"""Many sandboxes on one broker: what each more costs to start, in memory, and in the time of a request.

    python -m bench.sessions CACERT PORT COUNT...      prints JSON: for each count the points of three curves

A child process without a right makes the bridges, as a runner does, and asks the origin from inside the newest one. The
broker serves every session under a grant of its own. Broker and bridges are on different cores.
"""

import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.accounting import cost_of
from bench.load import client_hello, perform
from bench.origins import NAME
from bench.ours import POLICY
from bench.processes import cores
from broker.audit.log import AuditLog
from broker.gateway.broker import Broker
from broker.gateway.inspector import Inspector
from broker.gateway.metering import Meter
from broker.gateway.resolve import Resolver
from broker.gateway.serve import raise_descriptors
from broker.gateway.session import Identity
from broker.policy.authority import parse_authority
from broker.policy.grants import CallId, Grant, GrantId, Usage
from broker.policy.load import parse_policy
from netns import handoff, kernel
from netns.bridge import build_bridge

UNPRIVILEGED: Final = 65534
NAME_SERVER: Final = "198.19.255.1"
ASK_SECONDS: Final = 0.5


def be_sandboxes(orders: socket.socket, port: int) -> None:
    """Make a bridge for each order `bridge`; answer `ask` with the median seconds of a request from the newest one."""
    os.sched_setaffinity(0, {cores()[1]})
    client_hello(NAME)  # loads what the account below may be unable to read
    if os.geteuid() == 0:
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    kernel.enter_user_namespace()
    held = []
    authority = ""
    while (order := orders.recv(1 << 16)) != b"":
        if order == b"bridge":
            begin = time.perf_counter()
            bridge = build_bridge()  # leaves us inside
            taken = time.perf_counter() - begin
            handoff.send(orders, json.dumps(taken).encode(), bridge.listeners.descriptors())
            bridge.listeners.close()
            held.append(bridge)
        elif order == b"ask":
            asked: dict[str, Any] = {"name": NAME, "address": ("127.0.0.1", port), "name_server": NAME_SERVER}
            done = perform({**asked, "kind": "ask", "concurrency": 1, "seconds": ASK_SECONDS, "cacert": authority})
            handoff.send(orders, json.dumps(done["p50"]).encode())
        else:
            authority = order.decode()


class Sessions:
    """The broker with its sessions, and the process that has the sandboxes."""

    def __init__(self, directory: Path, sandboxes: socket.socket, cacert: Path, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.policy = parse_policy(POLICY.format(name=NAME, ports=[port], tls="inspect"), source="bench")
        inspector = Inspector(directory / "certs", (cacert.read_bytes(),))
        self.meters: dict[str, Meter] = {}
        self.broker = Broker(
            loop,
            policy=self.policy,
            log=AuditLog.open(directory / "audit"),
            log_location="",
            resolver=Resolver(
                self.policy.limits,
                {parse_authority(f"{NAME}:{port}".encode(), default_port=None): (ip_address("127.0.0.1"),)},
            ),
            inspector=inspector,
            find_meter=self.meters.get,
        )
        self.sandboxes = sandboxes
        self.starts: list[float] = []
        sandboxes.send(inspector.authority_pem())
        inspector.warm()

    async def _ask(self, order: bytes) -> tuple[float, list[int]]:
        self.sandboxes.send(order)
        message, descriptors = await asyncio.to_thread(handoff.receive, self.sandboxes)
        if not message:
            raise RuntimeError("the sandboxes' process ended")
        return float(json.loads(message)), descriptors

    async def add(self) -> None:
        """One more sandbox, attached."""
        taken, descriptors = await self._ask(b"bridge")
        begin = time.perf_counter()
        number = len(self.meters)
        now = time.time()
        identity = GrantId(f"g-{number}")
        grant = Grant(
            id=identity, call=CallId(f"c-{number}"), rules=self.policy.rules, issued_at=now, expires_at=now + 3600
        )
        self.meters[identity] = Meter(grant, Usage(), time.time)
        listeners = [socket.socket(fileno=fd) for fd in descriptors]
        for listener in listeners:
            listener.setblocking(False)
        self.broker.open_session(Identity(session=f"s-{number}"), identity, listeners)
        self.starts.append(taken + time.perf_counter() - begin)

    async def point(self, count: int) -> dict[str, float]:
        """Grow to `count` sessions; the figures there."""
        before = len(self.meters)
        while len(self.meters) < count:
            await self.add()
        waited, _ = await self._ask(b"ask")
        return {
            "sessions": count,
            "start_ms": statistics.median(self.starts[before:]) * 1e3,
            "memory_mb": cost_of({os.getpid()}).memory / 1e6,
            "request_us": waited * 1e6,
        }


async def measure(sandboxes: socket.socket, cacert: Path, port: int, counts: list[int]) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as directory:
        sessions = Sessions(Path(directory), sandboxes, cacert, port)
        try:
            return [await sessions.point(count) for count in sorted(counts)]
        finally:
            sessions.broker.close()


def main() -> None:
    cacert, port, *counts = sys.argv[1:]
    mine, theirs = handoff.pair()
    raise_descriptors()
    pid = os.fork()
    if pid == 0:
        mine.close()
        be_sandboxes(theirs, int(port))
        os._exit(0)
    theirs.close()
    os.sched_setaffinity(0, {cores()[0]})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        points = runner.run(measure(mine, Path(cacert), int(port), [int(count) for count in counts]))
    mine.close()
    os.waitpid(pid, 0)
    print(json.dumps(points))


if __name__ == "__main__":
    main()
