"""Many sandboxes on one broker, or many tunnels in one sandbox: what each more costs, in time and in memory.

    python -m bench.sessions CACERT HTTPS HOLD sessions|tunnels COUNT...      prints JSON: for each count its figures

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
from bench.load import Held, client_hello, perform
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
ASKS: Final = 4  # at each point: something else may want the core for a while
MORE: Final = """
[limits]
session_connections = 100000

[[rule]]
name = "held"
action = "allow"
hosts = ["{name}"]
ports = [{hold}]
tls = "splice"
addresses = ["127.0.0.1/32"]
"""


def be_sandboxes(orders: socket.socket, port: int, hold: int) -> None:
    """Make a bridge for each order `bridge`; all else is done from inside the newest one.

    `ask` is answered with the median seconds of a request and how many there were, `hold N` with the seconds that it
    took to open so many more tunnels, which stay open.
    """
    os.sched_setaffinity(0, {cores()[1]})
    client_hello(NAME)  # loads what the account below may be unable to read
    if os.geteuid() == 0:
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    kernel.enter_user_namespace()
    held = []
    tunnels = Held()
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
            handoff.send(orders, json.dumps([done["p50"], done["operations"]]).encode())
        elif order.startswith(b"hold "):
            wanted: dict[str, Any] = {"name": NAME, "address": ("127.0.0.1", hold), "name_server": NAME_SERVER}
            begin = time.perf_counter()
            tunnels.hold({**wanted, "count": int(order[5:])})
            handoff.send(orders, json.dumps(time.perf_counter() - begin).encode())
        else:
            authority = order.decode()


class Sessions:
    """The broker with its sessions, and the process that has the sandboxes."""

    def __init__(self, directory: Path, sandboxes: socket.socket, cacert: Path, ports: tuple[int, int]) -> None:
        loop = asyncio.get_running_loop()
        port, hold = ports
        text = POLICY.format(name=NAME, ports=[port], tls="inspect") + MORE.format(name=NAME, hold=hold)
        self.policy = parse_policy(text, source="bench")
        inspector = Inspector(directory / "certs", (cacert.read_bytes(),))
        self.meters: dict[str, Meter] = {}
        self.broker = Broker(
            loop,
            policy=self.policy,
            log=AuditLog.open(directory / "audit"),
            log_location="",
            resolver=Resolver(
                self.policy.limits,
                {
                    parse_authority(f"{NAME}:{one}".encode(), default_port=None): (ip_address("127.0.0.1"),)
                    for one in ports
                },
            ),
            inspector=inspector,
            find_meter=self.meters.get,
        )
        self.sandboxes = sandboxes
        self.starts: list[float] = []
        self.held = 0
        sandboxes.send(inspector.authority_pem())
        inspector.warm()

    async def _ask(self, order: bytes) -> tuple[Any, list[int]]:
        self.sandboxes.send(order)
        message, descriptors = await asyncio.to_thread(handoff.receive, self.sandboxes)
        if not message:
            raise RuntimeError("the sandboxes' process ended")
        return json.loads(message), descriptors

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

    async def request(self) -> dict[str, float]:
        """A request from the newest sandbox: how long it takes, and what of the broker's CPU; the quietest of a few."""
        times, spent = [], []
        for _ in range(ASKS):
            before = time.process_time()
            (waited, count), _ = await self._ask(b"ask")
            times.append(waited)
            spent.append((time.process_time() - before) / count)
        return {"request_us": min(times) * 1e6, "request_cpu_us": min(spent) * 1e6}

    async def point(self, count: int) -> dict[str, float]:
        """Grow to `count` sessions; the figures there."""
        before = len(self.meters)
        while len(self.meters) < count:
            await self.add()
        if before == 0:
            await self.request()  # loads what the others find loaded
        start = statistics.median(self.starts[before:]) * 1e3
        return {"count": count, "start_ms": start, "memory_mb": memory(), **await self.request()}

    async def tunnels(self, count: int) -> dict[str, float]:
        """Grow to `count` tunnels in one sandbox; the figures there."""
        if not self.meters:
            await self.add()
            await self.request()  # loads what the others find loaded
        more = count - self.held
        before = time.process_time()
        taken, _ = await self._ask(b"hold %d" % more)
        spent = time.process_time() - before
        self.held = count
        opened = {"open_us": taken / more * 1e6, "open_cpu_us": spent / more * 1e6}
        return {"count": count, "memory_mb": memory(), **opened, **await self.request()}


def memory() -> float:
    """What this process holds in MB."""
    return cost_of({os.getpid()}).memory / 1e6


async def measure(
    sandboxes: socket.socket, cacert: Path, ports: tuple[int, int], what: str, counts: list[int]
) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as directory:
        sessions = Sessions(Path(directory), sandboxes, cacert, ports)
        point = {"sessions": sessions.point, "tunnels": sessions.tunnels}[what]
        try:
            return [await point(count) for count in sorted(counts)]
        finally:
            sessions.broker.close()


def main() -> None:
    cacert, port, hold, what, *counts = sys.argv[1:]
    ports = int(port), int(hold)
    mine, theirs = handoff.pair()
    raise_descriptors()
    pid = os.fork()
    if pid == 0:
        mine.close()
        raise_descriptors()
        be_sandboxes(theirs, *ports)
        os._exit(0)
    theirs.close()
    os.sched_setaffinity(0, {cores()[0]})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        points = runner.run(measure(mine, Path(cacert), ports, what, [int(count) for count in counts]))
    mine.close()
    os.waitpid(pid, 0)
    print(json.dumps(points))


if __name__ == "__main__":
    main()
