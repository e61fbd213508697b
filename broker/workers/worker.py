"""A worker: serves the sessions that the daemon hands to it, with the same data path as a broker of one's own.

It has an audit log of its own in the broker's directory, so what it decides is on record before it is released, and no
other process is waited for. Grants are kept by the daemon; each is spent in one worker at a time. Our own fault with a
message of the daemon ends the worker: what it should have closed is closed then, and its sessions attach again.
"""

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, assert_never

import uvloop

from broker.audit.location import audit_directory
from broker.audit.log import AuditLog, SyncPolicy
from broker.control.aside import let_go, thaw_aside
from broker.control.grants import meter_of
from broker.gateway.attach import AttachConnection, Ordered
from broker.gateway.broker import Broker
from broker.gateway.inspector import Inspector
from broker.gateway.metering import LedgerUnavailable, Meter
from broker.gateway.resolve import Resolver, make_absolute
from broker.gateway.serve import raise_descriptors
from broker.gateway.session import Session
from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.reasons import Reason
from broker.policy.rules import Policy, with_flag
from broker.workers import channel as channels
from broker.workers.channel import ChannelClosed
from broker.workers.chores import AUTHORITY_SECONDS, SYNC_SECONDS, again
from broker.workers.ledger import RemoteLedger
from broker.workers.messages import (
    Ask,
    CutSession,
    Done,
    EndGrant,
    Figures,
    ForgetAbsent,
    FromWorker,
    Gone,
    Record,
    Recorded,
    Release,
    Serve,
    SessionFigures,
    Stop,
    Switch,
    TakePolicy,
    ToWorker,
    Used,
    decode_to_worker,
    encode,
)
from certs.store import authority_directory

LEDGER_SECONDS: Final = 5.0  # for the daemon's word; without it nothing more is spent
KEPT_BACK: Final = 64  # descriptors that sandboxes' connections do not get, so that the daemon's word gets through
UNUSED_SECONDS: Final = 60.0  # for a runner whose session was refused to close its connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every worker of a broker is started with; as in `broker.control.daemon.Daemon`."""

    state: Path
    sync: SyncPolicy = SyncPolicy.INTERVAL
    certificates: tuple[bytes, ...] = ()
    fixed: Mapping[Authority, tuple[Address, ...]] = field(default_factory=dict)


def run_worker(channel: socket.socket, settings: Settings) -> None:
    """Serve until the daemon says that it is enough, or has gone."""
    raise_descriptors()
    _keep_descriptors_back()
    make_absolute()
    # A service manager's signals are for the daemon, which ends its workers cleanly.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(channel, settings))


async def _serve(channel: socket.socket, settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker(channel, settings, loop)
    loop.add_reader(channel.fileno(), worker.on_readable)
    chores = (
        asyncio.create_task(worker.take_policies()),
        asyncio.create_task(again(SYNC_SECONDS, worker.sync, "sync_failed", worker.troubles)),
        asyncio.create_task(again(AUTHORITY_SECONDS, worker.renew, "authority_failed", worker.troubles)),
    )
    for chore in chores:
        chore.add_done_callback(_die_of)
    await worker.ended.wait()
    for chore in chores:
        chore.cancel()
    loop.remove_reader(channel.fileno())
    worker.close()


class Worker:
    """The worker's side of its channel. The broker is there from the first policy on."""

    def __init__(self, channel: socket.socket, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = asyncio.Event()
        self.troubles: dict[str, str] = {}
        self._channel = channel
        self._settings = settings
        self._loop = loop
        self._broker: Broker | None = None
        self._policy: Policy | None = None
        self._switched_on = False
        self._meters: dict[str, Meter] = {}
        self._ledger = RemoteLedger(self._call)
        self._numbers = itertools.count(1)
        self._waiting: deque[tuple[ToWorker, list[int]]] = deque()
        self._policies: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    def on_readable(self) -> None:
        """Do what the daemon has said, in its order."""
        try:
            while not self.ended.is_set():
                if not self._waiting:
                    self._receive(wait=False)
                self._do(*self._waiting.popleft())
        except BlockingIOError:
            return
        except ChannelClosed:
            os._exit(1)  # the daemon has gone, and nobody may serve without it
        except BaseException as error:  # noqa: BLE001  see the module
            _die(error)

    async def take_policies(self) -> None:
        """Put the policies that come in force, one after the other."""
        try:
            while True:
                await self._take_policy(*await self._policies.get())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  a policy that is not in force must not be thought to be
            _die(error)

    async def sync(self) -> None:
        """Put the log on the disk."""
        if self._broker is not None:
            await self._broker.log.sync_in_thread()

    async def renew(self) -> None:
        """Take over a rotation of the authority."""
        if self._broker is not None and self._broker.inspector is not None:
            self._broker.inspector.reload()

    def close(self) -> None:
        """End every session, and finish the log."""
        if self._broker is not None:
            self._broker.close(sign=True)

    def _do(self, message: ToWorker, descriptors: list[int]) -> None:
        match message:
            case Serve():
                self._serve(message, descriptors)
            case TakePolicy(ticket=ticket):
                self._policies.put_nowait((ticket, channels.read_memory_file(descriptors[0])))
                os.close(descriptors[0])
            case Release(grant=grant):
                meter = self._meters.pop(grant, None)
                if meter is not None:
                    meter.sessions.clear()  # so that nobody waits for its expiry any more
            case ForgetAbsent():
                for meter in self._meters.values():
                    meter.sessions.intersection_update(self._sessions)
            case Stop():
                self.ended.set()
            case Recorded():
                pass  # the answer to a call that was given up
            case Switch() | EndGrant() | CutSession() | Ask():
                self._send(Done(message.ticket, figures=self._obey(message)))
            case never:
                assert_never(never)

    def _obey(self, message: Switch | EndGrant | CutSession | Ask) -> Figures:
        match message:
            case Switch(on=on):
                self._switched_on = on
                self._put_in_force()
            case EndGrant(grant=grant):
                self._end_grant(grant)
                return self._use_of(grant)
            case CutSession(session=session, detail=detail):
                self._cut(session, detail)
            case Ask(grant=grant):
                return self._use_of(grant) if grant else self._figures()
            case never:
                assert_never(never)
        return Figures()

    @property
    def _sessions(self) -> Mapping[str, Session]:
        return self._broker.sessions if self._broker is not None else {}

    async def _take_policy(self, ticket: int, frozen: bytes) -> None:
        policy = await thaw_aside(frozen)
        former = [self._policy, self._broker.policy] if self._policy and self._broker else []
        self._policy = policy
        if self._broker is None:
            self._broker = self._open(policy)
        self._put_in_force()
        self._send(Done(ticket, log=self._broker.log.name))
        await let_go(former)

    def _open(self, policy: Policy) -> Broker:
        settings = self._settings
        directory = audit_directory(settings.state)
        inspector = Inspector(authority_directory(settings.state), settings.certificates)
        inspector.warm()
        return Broker(
            self._loop,
            policy=with_flag(policy, enabled=False),
            log=AuditLog.open(directory, sync=settings.sync),
            log_location=str(directory),
            resolver=Resolver(policy.limits, settings.fixed),
            inspector=inspector,
            find_meter=self._meters.get,
        )

    def _put_in_force(self) -> None:
        if self._broker is not None and self._policy is not None:
            enabled = self._policy.enabled and self._switched_on
            self._broker.change_policy(with_flag(self._policy, enabled=enabled))

    def _serve(self, serve: Serve, descriptors: list[int]) -> None:
        grant = serve.attach.grant
        if serve.grant is not None and grant not in self._meters:
            self._meters[grant] = meter_of(serve.grant, time.time, self._ledger)

        def over() -> None:
            meter = self._meters.get(grant)
            self._send(Gone(serve.order, Used.of(meter.usage) if meter is not None else None))

        broker = self._broker
        if broker is None or not descriptors:  # none was left, and the kernel has closed the connection
            over()
            return
        lease = AttachConnection(broker, socket.socket(fileno=descriptors[0]), Ordered(attach=serve.attach, over=over))
        broker.reactor.run(lambda: lease.on_event(0))
        broker.reactor.later(UNUSED_SECONDS, lease.close_unused)

    def _end_grant(self, grant: str) -> None:
        meter = self._meters.get(grant)
        if meter is not None and self._broker is not None:
            meter.usage.revoked = True
            self._broker.cut_grant(meter, Reason.GRANT_REVOKED)

    def _cut(self, session: str, detail: str) -> None:
        found = self._sessions.get(session)
        if found is not None and self._broker is not None:
            self._broker.close_session(found, Reason.SESSION_ENDED, detail)
            self._broker.end_turn()

    def _use_of(self, grant: str) -> Figures:
        meter = self._meters.get(grant)
        return Figures(used={grant: Used.of(meter.usage)} if meter is not None else {})

    def _figures(self) -> Figures:
        if self._broker is None:
            return Figures()
        log = self._broker.log
        troubles = dict(self.troubles) if log.available else {**self.troubles, "log_unavailable": log.cause}
        return Figures(
            allowed=max(0, log.counts.allowed),
            denied=log.counts.denied,
            failures=log.counts.failures,
            sessions=[_figures_of(one) for one in self._broker.sessions.values()],
            used={grant: Used.of(meter.usage) for grant, meter in self._meters.items()},
            troubles=troubles,
        )

    def _call(self, make: Callable[[int], Record]) -> Recorded:
        """Ask the daemon, and wait. What else it says meanwhile keeps its place. Raises `LedgerUnavailable`."""
        number = next(self._numbers)
        try:
            self._send(make(number))
            end = time.monotonic() + LEDGER_SECONDS
            while True:
                self._channel.settimeout(max(0.001, end - time.monotonic()))
                self._receive(wait=True)
                message, _ = self._waiting[-1]
                if isinstance(message, Recorded):
                    self._waiting.pop()
                    if message.number == number:
                        return message
        except TimeoutError:
            raise LedgerUnavailable(f"the daemon did not answer within {LEDGER_SECONDS:g} s") from None
        except ChannelClosed:
            os._exit(1)
        finally:
            self._channel.settimeout(None)
            if self._waiting:
                self._loop.call_soon(self.on_readable)

    def _receive(self, *, wait: bool) -> None:
        with _descriptors_kept_back():
            message, descriptors = channels.receive(self._channel, wait=wait)
        self._waiting.append((decode_to_worker(message), descriptors))

    def _send(self, message: FromWorker) -> None:
        try:
            channels.send(self._channel, encode(message))
        except OSError:
            os._exit(1)  # the daemon has gone


@contextlib.contextmanager
def _descriptors_kept_back() -> Iterator[None]:
    """Take from those that are kept back (getrlimit(2): the soft limit is what new descriptors are held against)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _keep_descriptors_back() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard - KEPT_BACK, hard // 2), hard))


def _figures_of(session: Session) -> SessionFigures:
    recorder = session.recorder
    return SessionFigures(
        id=session.identity.session,
        call=recorder.call,
        grant=recorder.grant,
        attached_at=session.opened,
        connections=session.open_connections,
        allowed=max(0, recorder.counts.allowed),
        denied=recorder.counts.denied,
        failures=recorder.counts.failures,
        name_queries=session.queries,
    )


def _die_of(chore: asyncio.Task[None]) -> None:
    if not chore.cancelled() and (error := chore.exception()) is not None:
        _die(error)


def _die(error: BaseException) -> None:
    traceback.print_exception(error)
    os._exit(1)
