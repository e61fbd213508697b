"""Who serves which session, and what becomes of rights and counts when a worker is slow, silent or dead.

The workers are played: each end of a channel is a queue of what the daemon said and a way to answer.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest

from broker.control.messages import Attach
from broker.gateway.metering import LedgerUnavailable
from broker.policy.document import parse_policy
from broker.policy.reasons import Reason, Refusal
from broker.workers import pool as pools
from broker.workers.channel import ChannelClosed, pair, receive, send
from broker.workers.link import WorkerLink
from broker.workers.messages import (
    Done,
    EndGrant,
    Exited,
    Figures,
    FromWorker,
    Gone,
    KnownGrant,
    Record,
    Recorded,
    Release,
    Serve,
    Started,
    Stop,
    Switch,
    TakePolicy,
    ToWorker,
    Used,
    decode_to_worker,
    encode,
)
from broker.workers.pool import Events, WorkerPool

POLICY = parse_policy(
    'version = 1\n[egress]\nenabled = true\n[[rule]]\nname = "a"\naction = "allow"\nhosts = ["a.example"]\n',
    source="test",
)


class PlayedWorker:
    """Confirms what it is told, unless `deaf` or told otherwise by `answers`."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.heard: list[ToWorker] = []
        self.deaf = False
        self.used: dict[str, Used] = {}
        asyncio.get_running_loop().add_reader(channel.fileno(), self._read)

    def say(self, message: FromWorker) -> None:
        send(self.channel, encode(message))

    def said(self, kind: type[ToWorker]) -> list[ToWorker]:
        return [one for one in self.heard if isinstance(one, kind)]

    @property
    def orders(self) -> list[Serve]:
        return [one for one in self.heard if isinstance(one, Serve)]

    def die(self) -> None:
        asyncio.get_running_loop().remove_reader(self.channel.fileno())
        self.channel.close()

    def _read(self) -> None:
        try:
            while True:
                message = decode_to_worker(receive(self.channel, wait=False)[0])
                self.heard.append(message)
                if hasattr(message, "ticket") and not self.deaf:
                    self.say(Done(message.ticket, log="log", figures=Figures(used=self.used)))
        except BlockingIOError:
            return
        except ChannelClosed:
            self.die()


class PlayedStarter:
    def __init__(self) -> None:
        self.workers: dict[int, PlayedWorker] = {}
        self.starts: list[float] = []
        self.killed: list[int] = []
        self.on_started: Callable[[Started], None] = lambda _: None
        self.on_exited: Callable[[Exited], None] = lambda _: None
        self.made: Callable[[PlayedWorker], None] = lambda _: None

    def start(self, worker: int) -> socket.socket:
        near, far = pair()
        self.workers[worker] = PlayedWorker(far)
        self.starts.append(asyncio.get_running_loop().time())
        self.made(self.workers[worker])
        self.on_started(Started(worker, 1000 + worker))
        return near

    def kill(self, worker: int) -> None:
        played = self.workers.pop(worker, None)
        if played is not None:
            self.killed.append(worker)
            played.die()
            asyncio.get_running_loop().call_soon(self.on_exited, Exited(worker, -9))

    def end(self, worker: int) -> None:
        """As a crash does."""
        self.kill(worker)
        self.killed.remove(worker)


@dataclass
class PlayedGrants:
    told: list[tuple[str, Used]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unkept: bool = False

    def know(self, grant: str) -> KnownGrant | None:
        raw = msgspec.Raw(b"{}")
        return KnownGrant(
            id=grant,
            call="",
            rules=raw,
            budgets=raw,
            issued_at=0,
            expires_at=1,
            revoked=False,
            used=Used(requests=sum(used.requests for name, used in self.told if name == grant)),
            sessions=[],
        )

    def tell(self, grant: str, used: Used) -> None:
        self.told.append((grant, used))

    def record(self, asked: Record) -> Used:
        if self.unkept:
            raise LedgerUnavailable("no space")
        return Used(requests=asked.used.requests + 10)

    def lose(self, grant: str) -> None:
        self.lost.append(grant)


@dataclass
class Stage:
    pool: WorkerPool
    starter: PlayedStarter
    grants: PlayedGrants
    events: list[str]

    def place(self, session: str, grant: str = "") -> None:
        self.pool.place(Attach(session=session, grant=grant), socket.socket())

    async def order_of(self, session: str) -> Serve:
        """Wait until a worker has the session's order."""

        def found() -> list[Serve]:
            orders = [order for worker in self.starter.workers.values() for order in worker.orders]
            return [order for order in orders if order.attach.session == session]

        await until(found)
        return found()[-1]

    def home(self, session: str) -> int:
        return next(
            number
            for number, worker in self.starter.workers.items()
            if session in {order.attach.session for order in worker.orders}
        )

    def over(self, session: str, used: Used | None = None) -> None:
        worker = self.starter.workers[self.home(session)]
        order = next(one for one in worker.orders if one.attach.session == session)
        worker.say(Gone(order.order, used))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def staged(count: int = 2) -> AsyncIterator[Stage]:
    starter, grants, events = PlayedStarter(), PlayedGrants(), []
    pool = WorkerPool(starter, grants, count)

    def ended(link: WorkerLink, code: int, lost: int) -> None:
        events.append(f"{link.number} ended {code} {lost}")

    pool.events = Events(
        lost=lambda attach, worker: events.append(f"{attach.session} lost with {worker}"),
        started=lambda link: events.append(f"{link.number} serves"),
        ended=ended,
    )
    await pool.switch(on=True)
    await pool.take_policy(POLICY)
    assert await pool.start()
    try:
        yield Stage(pool, starter, grants, events)
    finally:
        stopping = asyncio.create_task(pool.stop())
        await asyncio.sleep(0)
        for number in list(starter.workers):
            await until(partial(starter.workers[number].said, Stop))
            starter.workers.pop(number).die()
            starter.on_exited(Exited(number, 0))
        await stopping


async def test_sessions_go_to_whoever_has_fewest_and_those_of_a_grant_together() -> None:
    async with staged() as stage:
        for number in range(4):
            stage.place(f"s-{number}")
        stage.place("g-1", "grant")
        stage.place("g-2", "grant")
        stage.place("g-3", "grant")
        stage.place("s-4")
        await until(lambda: sum(len(one.orders) for one in stage.starter.workers.values()) == 8)
        homes = [stage.home(f"s-{number}") for number in range(4)]
        assert sorted(homes) == [1, 1, 2, 2]
        assert len({stage.home(f"g-{number}") for number in (1, 2, 3)}) == 1
        assert stage.home("s-4") != stage.home("g-1")


async def test_a_grant_is_released_after_its_last_session_and_its_use_goes_along() -> None:
    async with staged() as stage:
        stage.place("s-1", "grant")
        stage.place("s-2", "grant")
        await until(lambda: len(stage.starter.workers[1].orders) == 2)
        stage.over("s-1", Used(requests=3))
        stage.place("s-3")  # hears the workers first
        await until(lambda: stage.grants.told == [("grant", Used(requests=3))])
        assert not stage.starter.workers[1].said(Release)
        stage.over("s-2", Used(requests=5))
        await until(lambda: stage.starter.workers[1].said(Release) == [Release("grant")])
        stage.place("k-1")
        stage.place("s-4", "grant")
        order = await stage.order_of("s-4")
        assert order.grant is not None
        assert order.grant.used.requests == 8


async def test_what_ended_before_is_known_when_the_next_comes() -> None:
    async with staged() as stage:
        stage.place("s-1", "grant")
        with pytest.raises(Refusal) as refused:
            stage.place("s-1")
        assert refused.value.reason is Reason.BAD_REQUEST
        await until(lambda: stage.starter.workers[1].orders)
        stage.over("s-1")
        stage.place("s-1")  # without a turn of the loop between
        assert stage.pool.attached == ["s-1"]


async def test_a_cut_session_comes_back_nowhere() -> None:
    async with staged() as stage:
        stage.place("s-1")
        await stage.pool.cut_session("s-1", "cut")
        await until(lambda: stage.starter.workers[1].orders)
        stage.over("s-1")
        with pytest.raises(Refusal) as refused:
            stage.place("s-1")
        assert refused.value.reason is Reason.SESSION_ENDED


async def test_a_dead_workers_sessions_and_grants_are_free_and_counted_as_lost() -> None:
    async with staged() as stage:
        stage.place("s-1", "grant")
        stage.place("s-2")
        await until(lambda: stage.starter.workers[1].orders and stage.starter.workers[2].orders)
        stage.starter.end(1)
        stage.place("s-1", "grant")  # comes back before the loop has heard of the end
        assert stage.grants.lost == ["grant"]
        await until(lambda: len(stage.starter.workers[2].orders) == 2)
        await until(lambda: "3 serves" in stage.events)
        assert stage.events[2:] == ["s-1 lost with 1", "1 ended -9 1", "3 serves"]


async def test_what_a_dead_worker_said_last_is_heard() -> None:
    async with staged() as stage:
        stage.place("s-1", "grant")
        await until(lambda: stage.starter.workers[1].orders)
        stage.over("s-1", Used(requests=7))
        stage.starter.end(1)
        await until(lambda: "1 ended -9 0" in stage.events)
        assert stage.grants.told == [("grant", Used(requests=7))]
        assert stage.grants.lost == []


async def test_places_are_taken_later_each_time_and_nobody_is_lost_meanwhile() -> None:
    async with staged(1) as stage:
        for number in (1, 2, 3):
            await until(partial(stage.events.__contains__, f"{number} serves"))
            stage.starter.end(number)
        await until(lambda: not stage.pool.serving)
        stage.place("s-1")  # waits
        await until(lambda: "4 serves" in stage.events)
        await until(lambda: stage.starter.workers[4].orders)
        pauses = [
            later - earlier for earlier, later in zip(stage.starter.starts, stage.starter.starts[1:], strict=False)
        ]
        assert [pause >= wanted for pause, wanted in zip(pauses, (0.2, 0.4, 0.8), strict=True)] == [True] * 3


@pytest.mark.parametrize("what", ["switch", "grant", "cut", "policy"])
async def test_who_does_not_carry_out_the_end_of_a_right_is_killed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(pools, "OBEY_SECONDS", 0.05)
    monkeypatch.setattr(pools, "POLICY_SECONDS", 0.05)
    async with staged() as stage:
        stage.place("s-1", "grant")
        stage.starter.workers[1].deaf = True
        match what:
            case "switch":
                await stage.pool.switch(on=False)
            case "grant":
                await stage.pool.end_grant("grant")
            case "cut":
                await stage.pool.cut_session("s-1", "cut")
            case _:
                await stage.pool.take_policy(POLICY)
        assert stage.starter.killed == [1]
        assert stage.pool.attached == []
        await until(lambda: "3 serves" in stage.events)


async def test_who_is_silent_is_reported_and_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "SILENT_SECONDS", 0.05)
    async with staged() as stage:
        stage.starter.workers[2].deaf = True
        assert [link.number for link in await stage.pool.learn_all(seconds=0.05)] == [2]
        assert stage.starter.killed == []
        await stage.pool.kill_stuck()
        assert stage.starter.killed == [2]
        await until(lambda: "3 serves" in stage.events)


async def test_a_worker_that_starts_meanwhile_serves_under_what_holds_now() -> None:
    async with staged(1) as stage:
        slow: list[PlayedWorker] = []

        def make_slow(worker: PlayedWorker) -> None:
            worker.deaf = True
            slow.append(worker)

        stage.starter.made = make_slow
        stage.starter.end(1)
        await until(lambda: slow and slow[0].said(Switch))
        switching = asyncio.create_task(stage.pool.switch(on=False))
        await until(lambda: len(slow[0].said(Switch)) == 2)
        slow[0].deaf = False
        for told in slow[0].said(Switch):
            slow[0].say(Done(told.ticket))  # type: ignore[union-attr]
        await switching
        await until(lambda: "2 serves" in stage.events)
        last = slow[0].said(Switch)[-1]
        assert isinstance(last, Switch)
        assert not last.on
        assert slow[0].said(TakePolicy)


async def test_a_policy_that_is_off_takes_hold_before_it_is_told() -> None:
    """A large policy takes its time to get over; what it ends must not wait for that."""
    off = parse_policy("version = 1\n", source="off")
    async with staged(1) as stage:
        before = len(stage.starter.workers[1].heard)
        await stage.pool.take_policy(off)
        told = stage.starter.workers[1].heard[before:]
        assert [type(one) for one in told] == [Switch, TakePolicy, Switch]
        assert [one.on for one in told if isinstance(one, Switch)] == [False, True]


async def test_only_the_worker_that_has_a_grant_may_spend_it() -> None:
    async with staged() as stage:
        stage.place("s-1", "grant")
        await until(lambda: stage.starter.workers[1].orders)
        for number in (1, 2):
            stage.starter.workers[number].say(Record(number=1, grant="grant", used=Used(requests=1)))
        await until(lambda: all(stage.starter.workers[number].said(Recorded) for number in (1, 2)))
        (granted,), (refused,) = (stage.starter.workers[number].said(Recorded) for number in (1, 2))
        assert granted == Recorded(1, Used(requests=11))
        assert isinstance(refused, Recorded)
        assert "another worker" in refused.error
        stage.grants.unkept = True
        stage.starter.workers[1].say(Record(number=2, grant="grant", used=Used()))
        await until(lambda: len(stage.starter.workers[1].said(Recorded)) == 2)
        assert stage.starter.workers[1].said(Recorded)[1] == Recorded(2, error="no space")


async def test_a_revoked_grants_use_is_told_with_the_answer() -> None:
    async with staged() as stage:
        stage.place("s-1", "grant")
        stage.starter.workers[1].used = {"grant": Used(requests=4)}
        await stage.pool.end_grant("grant")
        assert isinstance(stage.starter.workers[1].heard[-1], EndGrant)
        assert ("grant", Used(requests=4)) in stage.grants.told


async def test_a_worker_that_breaks_the_protocol_is_ended() -> None:
    async with staged() as stage:
        send(stage.starter.workers[1].channel, b'{"type":"done"}')
        await until(lambda: stage.starter.killed == [1])
        await until(lambda: "3 serves" in stage.events)
