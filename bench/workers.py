"""The broker's workers: how much more two serve than one.

    python -m bench.workers CACERT PORT ROUNDS SECONDS      prints JSON: for each number of workers its rates

Brokers with one worker and with two take turns under the same load: four sandboxes with a grant each, asking an HTTPS
origin through inspection, log on. What is compared is what a broker serves for each second of CPU of the process that
limits it (the utilisation law): of a worker, on average over the workers, which have the same number of sandboxes; or
of any other of its processes that computes more than that, so that one which all workers wait for would show. On two
cores the rates themselves would be those of load and origin, which need more of both than the brokers leave.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.accounting import cost_of, tree
from bench.load import client_hello, perform
from bench.measures import Sample
from bench.origins import NAME, Origins
from bench.ours import POLICY
from bench.processes import ROOT
from bench.results import Row
from bench.sessions import NAME_SERVER, UNPRIVILEGED
from broker.control.client import Broker, BrokerRefusal, BrokerUnreachable
from broker.control.messages import Attach, encode
from netns import handoff, kernel
from netns.bridge import build_bridge

SANDBOXES: Final = 4
CONCURRENCY: Final = 16  # of each: a worker has work for many requests in each of its turns, as one that is full has
READY_SECONDS: Final = 60.0
WORKERS: Final = (1, 2)
ROWS: Final = {1: "wicketgate broker, 1 worker", 2: "wicketgate broker, 2 workers"}

CONFIG: Final = """\
version = 1
[broker]
policy = "{place}/policy.toml"
state = "{place}/state"
runtime = "{place}/run"
cacert = ["{place}/origin.pem"]
workers = {workers}
[resolve]
"{name}:{port}" = ["127.0.0.1"]
"""


def be_sandbox(orders: socket.socket, attach: Path, session: str, grant: str, port: int) -> None:
    """A runner with one sandbox: attach, then answer each order with what was done in so many seconds."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(attach))
    authority = json.loads(handoff.receive(connection)[0])["authority"]
    client_hello(NAME)  # loads what the account below may be unable to read
    if os.geteuid() == 0:
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    kernel.enter_user_namespace()
    bridge = build_bridge()  # leaves us inside
    handoff.send(connection, encode(Attach(session=session, grant=grant)), bridge.listeners.descriptors())
    bridge.listeners.close()
    handoff.send(orders, handoff.receive(connection)[0])
    asked: dict[str, Any] = {"name": NAME, "address": ("127.0.0.1", port), "name_server": NAME_SERVER}
    while seconds := orders.recv(64):
        order = {**asked, "kind": "ask", "concurrency": CONCURRENCY, "cacert": authority}
        handoff.send(orders, json.dumps(perform({**order, "seconds": float(seconds)})["operations"]).encode())


class Loaded:
    """A broker with its sandboxes attached, as many to each worker."""

    def __init__(self, place: Path, stack: ExitStack, workers: int, cacert: Path, port: int) -> None:
        self._sandboxes: list[socket.socket] = []
        place.chmod(0o755)
        shutil.copy(cacert, place / "origin.pem")
        (place / "policy.toml").write_text(POLICY.format(name=NAME, ports=[port], tls="inspect"))
        (place / "broker.toml").write_text(CONFIG.format(place=place, workers=workers, name=NAME, port=port))
        self._process = stack.enter_context(_running(place))
        grants, self._workers = asyncio.run(_prepare(place / "run" / "control.sock", port))
        for number, grant in enumerate(grants):
            mine, theirs = handoff.pair()
            pid = os.fork()
            if pid == 0:
                mine.close()
                be_sandbox(theirs, place / "run" / "attach.sock", f"s-{number}", grant, port)
                os._exit(0)
            theirs.close()
            stack.callback(os.waitpid, pid, 0)
            stack.callback(mine.close)
            answer = json.loads(mine.recv(4096) or b"{}")
            if answer.get("type") != "attached":
                raise RuntimeError(f"a sandbox was not attached: {answer}")
            self._sandboxes.append(mine)

    def sample(self, seconds: float) -> float:
        """Requests for each CPU second of the process that limits the broker."""
        before = {pid: cost_of({pid}).cpu for pid in tree(self._process.pid)}
        for sandbox in self._sandboxes:
            sandbox.send(str(seconds).encode())
        done = sum(int(sandbox.recv(64) or b"0") for sandbox in self._sandboxes)
        spent = {pid: cost_of({pid}).cpu - earlier for pid, earlier in before.items()}
        each = sum(spent.pop(pid) for pid in self._workers) / len(self._workers)
        return done / max(each, *spent.values())


@contextmanager
def _running(place: Path) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "wicketgate", "broker", "--config", str(place / "broker.toml")]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=(place / "messages").open("ab"))
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


async def _prepare(control: Path, port: int) -> tuple[list[str], list[int]]:
    """Wait for the broker: a grant for each sandbox, and the pids of the workers."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            async with Broker(control) as broker:
                grants = [(await broker.issue(allow=[f"{NAME}:{port}"], ttl=3600)).id for _ in range(SANDBOXES)]
                return grants, [worker.pid for worker in (await broker.health()).workers]
        except (BrokerUnreachable, BrokerRefusal, OSError) as error:
            refused = isinstance(error, BrokerRefusal) and error.problem.code != "not_taken"
            if refused or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def measure_workers(origins: Origins, rounds: int, seconds: float) -> dict[str, Row]:
    """A row for each number of workers. Raises RuntimeError, TimeoutExpired."""
    words = [str(origins.cacert), str(origins.https), str(rounds), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.workers", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=4 * READY_SECONDS + 4 * rounds * seconds,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    samples: dict[str, list[float]] = json.loads(done.stdout)
    return {
        # A busy machine can starve one sample: the others stand.
        ROWS[int(workers)]: Row(samples=[Sample(value=value, cpu=None) for value in values if value])
        for workers, values in samples.items()
    }


def main() -> None:
    cacert, port, rounds, seconds = sys.argv[1:]
    with ExitStack() as stack:
        brokers = {
            workers: Loaded(
                Path(stack.enter_context(tempfile.TemporaryDirectory())), stack, workers, Path(cacert), int(port)
            )
            for workers in WORKERS
        }
        for broker in brokers.values():
            broker.sample(0.5)  # leaves, pools, and what is loaded once
        samples: dict[int, list[float]] = {workers: [] for workers in WORKERS}
        for _ in range(int(rounds)):
            for workers, broker in brokers.items():
                samples[workers].append(broker.sample(float(seconds)))
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
