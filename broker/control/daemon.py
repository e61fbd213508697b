"""The broker as a daemon: what it holds, in which order it starts and ends, and what it does from time to time.

It holds policy, grants and the control API; sessions are served by its workers (`broker.workers`). It is started with
everything that needs a right done already: identity, namespace, sockets, the other processes. It asks for nothing that
could fail for want of one.
"""

import asyncio
import codecs
import contextlib
import signal
import socket
import ssl
import sys
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from broker.api.callers import Caller, this_process
from broker.api.faults import ApiError
from broker.api.server import ApiServer
from broker.audit.errors import AuditError, AuditUnavailable
from broker.audit.location import audit_directory
from broker.audit.log import AuditLog, SyncPolicy
from broker.control.app import control_server
from broker.control.config import GrantLimits
from broker.control.door import ATTACH, CONTROL, Peer, Refused
from broker.control.door_side import DoorSide
from broker.control.grants import GrantBook
from broker.control.notify import notify
from broker.control.operations import Operations
from broker.control.store import Store, StoreError
from broker.gateway.inspector import Inspector
from broker.gateway.serve import preload, preload_shared, raise_descriptors
from broker.policy.document import parse_policy
from broker.policy.load import local_machine
from broker.policy.problems import PolicyError, closest
from broker.workers.chores import AUTHORITY_SECONDS, SYNC_SECONDS, again
from broker.workers.pool import WorkerPool
from broker.workers.reception import Reception
from broker.workers.starter import Starter
from certs.errors import CertsError
from certs.store import authority_directory

KEEP_SECONDS: Final = 5.0
RETURN_SECONDS: Final = 600.0  # for the sessions of a former broker to attach again


# Every reader that a policy can need, the list of public suffixes among them.
_EVERYTHING: Final = """
version = 1
[[rule]]
name = "preload"
action = "allow"
hosts = ["*.b\u00fccher.example"]
methods = ["GET"]
paths = ["/v1/**"]
query = ["a=*"]
addresses = ["10.0.0.0/8"]
"""

type Chore = Coroutine[Any, Any, None]


def preload_daemon() -> None:
    """Load what is otherwise loaded on first use: after a change of user this interpreter may be unreadable."""
    preload()
    preload_shared()
    for codec in ("punycode", "utf-8", "latin-1", "ascii"):
        codecs.lookup(codec)
    parse_policy(_EVERYTHING, source="preload")
    closest("alow", ("allow",))  # and what a mistake in one needs
    ssl.create_default_context()
    traceback.format_exception(ValueError())  # and what a traceback needs


class StartError(Exception):
    """The broker cannot start. The message names the cause and, where there is one, the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """What a daemon is started with. `door` and `fork_server` are this side of the channels to these processes.

    `sockets` are the paths that are taken away at a clean end.
    """

    policy: str
    state: Path
    door: socket.socket
    fork_server: socket.socket
    workers: int
    version: str
    user_namespace: bool
    sockets: tuple[Path, ...] = ()
    sync: SyncPolicy = SyncPolicy.INTERVAL
    certificates: tuple[bytes, ...] = ()
    grants: GrantLimits = field(default_factory=GrantLimits)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises `StartError`, or `ConnectionError` when the door has gone."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a policy that could be replaced
        raise_descriptors()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(self))


async def _serve(daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    door = DoorSide(daemon.door)
    starter = Starter(daemon.fork_server)
    async with contextlib.AsyncExitStack() as undo:
        undo.callback(starter.close)
        inspector = Inspector(authority_directory(daemon.state), daemon.certificates)
        operations = await _prepare(daemon, door, starter, inspector, undo)
        control = control_server(operations, loop)
        undo.push_async_callback(control.close)
        _open(door, operations, inspector, control)
        undo.callback(door.close)
        async with asyncio.TaskGroup() as group:
            reload = asyncio.Event()
            chores = [
                group.create_task(chore)
                for chore in (*_chores(operations, inspector), _reload_when(reload, operations))
            ]
            loop.add_signal_handler(signal.SIGHUP, reload.set)
            notify("READY=1")
            print(f"wicketgate: the broker serves: {_summary(daemon, operations)}", file=sys.stderr, flush=True)
            waits = [asyncio.ensure_future(one.wait()) for one in (stop, door.gone, starter.gone)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            notify("STOPPING=1")
            operations.stopping = True
            for one in (*chores, *waits):
                one.cancel()
        for path in daemon.sockets if stop.is_set() else ():
            path.unlink(missing_ok=True)
    if not stop.is_set():
        does = "lets peers in" if door.gone.is_set() else "starts workers"
        raise ConnectionError(f"the process that {does} has ended, so the broker ends too")


def _summary(daemon: Daemon, operations: Operations) -> str:
    policy = operations.policy
    state = "on" if operations.in_force.enabled else "off"
    places = ", ".join(map(str, daemon.sockets))
    workers = f"{daemon.workers} worker{'s' if daemon.workers > 1 else ''}"
    return f"policy {policy.version} with {len(policy.rules)} rules, egress {state}, {workers}, at {places}"


async def _prepare(
    daemon: Daemon, door: DoorSide, starter: Starter, inspector: Inspector, undo: contextlib.AsyncExitStack
) -> Operations:
    """Everything that must stand before anybody is let in. Raises `StartError`."""
    try:
        text = await door.read_policy()
        policy = parse_policy(text, source=daemon.policy, machine=local_machine())
        store = Store(daemon.state)
        book = GrantBook(store, daemon.grants, time.time)
        undo.callback(book.close)
        log = AuditLog.open(audit_directory(daemon.state), sync=daemon.sync)
        undo.callback(_finish, log)
        inspector.load()  # so that workers find an authority
    except PolicyError as error:
        raise StartError(f"The policy is refused.\n{PolicyError(daemon.policy, error.problems)}") from error
    except (StoreError, AuditError, CertsError) as error:
        raise StartError(str(error)) from error
    operations = Operations(
        workers=WorkerPool(starter, book, daemon.workers),
        log=log,
        book=book,
        store=store,
        policy=policy,
        source=daemon.policy,
        read_policy=door.read_policy,
        version=daemon.version,
        user_namespace=daemon.user_namespace,
    )
    operations.record_start()
    undo.push_async_callback(operations.workers.stop)
    await operations.workers.switch(on=store.switched_on)
    await operations.workers.take_policy(policy)
    if not await operations.workers.start():
        raise StartError("A worker of the broker ended before it served; its own words are above.")
    return operations


def _finish(log: AuditLog) -> None:
    with contextlib.suppress(AuditUnavailable):
        log.close(sign=True)


def _open(door: DoorSide, operations: Operations, inspector: Inspector, control: ApiServer) -> None:
    """From here on peers come in."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(peer: Peer, connection: socket.socket) -> None:
        taken = await control.serve(connection, _caller(peer))
        door.tell(peer, "" if taken else "the broker serves as many connections as it can")

    def admit(peer: Peer, connection: socket.socket) -> None:
        if peer.role == CONTROL:
            task = asyncio.ensure_future(serve(peer, connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        elif peer.role == ATTACH:
            operations.attached += 1
            door.tell(peer)
            _receive(connection, inspector, operations.workers)

    door.on_peer = admit
    door.on_refused = lambda refused: operations.journal.peer_refused(refused.role, _caller(refused), refused.count)


def _receive(connection: socket.socket, inspector: Inspector, workers: WorkerPool) -> None:
    try:
        Reception(connection, inspector.authority_pem(), workers.place)
    except (OSError, CertsError) as error:  # it has gone already, or cannot be greeted
        print(f"wicketgate: a runner could not be greeted: {error}", file=sys.stderr, flush=True)
        connection.close()


def _caller(peer: Peer | Refused) -> Caller:
    return Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid)


async def _reload_when(asked: asyncio.Event, operations: Operations) -> None:
    """SIGHUP. However often it comes while a reload is under way, it asks for one more.

    What is wrong with the file was said and recorded by the operation.
    """
    while True:
        await asked.wait()
        asked.clear()
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        with contextlib.suppress(ApiError):
            await operations.reload_policy(this_process())
        notify("READY=1")


def _chores(operations: Operations, inspector: Inspector) -> list[Chore]:
    workers, book, troubles = operations.workers, operations.book, operations.troubles

    async def forget_absent() -> None:
        await asyncio.sleep(RETURN_SECONDS)
        with contextlib.suppress(StoreError):
            book.dismiss_absent(workers.attached)
        workers.forget_absent()

    async def keep() -> None:
        await workers.kill_stuck()
        book.keep()

    async def renew() -> None:
        inspector.reload()

    async def prune() -> None:
        book.prune()

    return [
        forget_absent(),
        again(SYNC_SECONDS, operations.log.sync_in_thread, "sync_failed", troubles),
        again(KEEP_SECONDS, keep, "store_failed", troubles, StoreError),
        again(AUTHORITY_SECONDS, renew, "authority_failed", troubles),
        again(book.prune_seconds, prune, "prune_failed", troubles, StoreError),
    ]
