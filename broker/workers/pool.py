"""The workers as the daemon sees them: which there are, who serves which session, what all of them are told.

A session goes to the worker with the fewest, and all sessions of one grant to one worker: so its budgets are counted in
one place. What takes a right away is done when every worker has said so; one that does not say so in time is killed,
which closes whatever it had open. A dead worker's sessions attach again by themselves, because their leases ended with
it; another takes its place, later each time that this happens soon.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from broker.control.aside import freeze_aside
from broker.control.messages import Attach
from broker.control.store import StoreError
from broker.gateway.metering import LedgerUnavailable
from broker.policy.reasons import Reason, Refusal
from broker.policy.rules import Policy
from broker.workers import channel as channels
from broker.workers.link import WorkerGone, WorkerLink
from broker.workers.messages import (
    Ask,
    CutSession,
    Done,
    EndGrant,
    Exited,
    Figures,
    ForgetAbsent,
    Gone,
    KnownGrant,
    Record,
    Recorded,
    Release,
    Serve,
    SessionFigures,
    Started,
    Stop,
    Switch,
    TakePolicy,
    ToWorker,
    Used,
)

OBEY_SECONDS: Final = 5.0  # to take a right away
POLICY_SECONDS: Final = 300.0  # to take over a policy, which may be large
ANSWER_SECONDS: Final = 1.0  # for figures that somebody waits for
SILENT_SECONDS: Final = 30.0  # without an answer a worker is taken for stuck
STOP_SECONDS: Final = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # before a dead worker's place is taken
STEADY_SECONDS: Final = 60.0  # served so long, its end is no part of a row of failures
CUT_REMEMBERED: Final = 10_000  # ids of sessions that were ended by order


class Starting(Protocol):
    """What starts and kills the processes; see `Starter`."""

    on_started: Callable[[Started], None]
    on_exited: Callable[[Exited], None]

    def start(self, worker: int) -> socket.socket: ...
    def kill(self, worker: int) -> None: ...


class Grants(Protocol):
    """What keeps the grants; see `GrantBook`."""

    def know(self, grant: str) -> KnownGrant | None: ...
    def tell(self, grant: str, used: Used) -> object: ...
    def record(self, asked: Record) -> Used: ...
    def lose(self, grant: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What the pool has to say. `lost`: a session whose worker died. `ended`: a worker, how, with so many sessions."""

    lost: Callable[[Attach, int], None] = lambda _attach, _worker: None
    started: Callable[[WorkerLink], None] = lambda _worker: None
    ended: Callable[[WorkerLink, int, int], None] = lambda _worker, _code, _sessions: None


class WorkerPool:
    """`count` workers. Nobody is served before `take_policy` and `switch`."""

    def __init__(self, starter: Starting, grants: Grants, count: int) -> None:
        self.workers: dict[int, WorkerLink] = {}
        self.events = Events()
        self._starter = starter
        self._grants = grants
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._orders = itertools.count(1)
        self._policy: bytes | None = None
        self._switched_on = False
        self._count = count
        self._pauses = 0
        self._totals = Figures()  # of workers that have ended
        self._last: dict[int, Figures] = {}
        self._lost: dict[int, int] = {}
        self._homes: dict[str, WorkerLink] = {}  # of grants
        self._homes_of_sessions: dict[str, WorkerLink] = {}
        self._cut: dict[str, None] = {}
        self._waiting: list[tuple[Attach, socket.socket]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._emptied = asyncio.Event()
        starter.on_started = self._on_started
        starter.on_exited = self._on_exited

    # ---- sessions

    def place(self, attach: Attach, connection: socket.socket) -> None:
        """Hand a runner's connection over, on which `attach` waits to be read. Raises `Refusal`; owns it otherwise."""
        for worker in self.serving:
            worker.drain()  # what has ended until now must not stand in its way
        if attach.session in self._homes_of_sessions:
            raise Refusal(Reason.BAD_REQUEST, "a session of this id is attached already")
        if attach.session in self._cut:
            raise Refusal(Reason.SESSION_ENDED, "the session was cut")
        try:
            grant = self._grants.know(attach.grant) if attach.grant else None
        except StoreError as error:
            raise Refusal(Reason.AUDIT_UNAVAILABLE, str(error)) from error
        link = self._home(attach.grant)
        if link is None:
            self._waiting.append((attach, connection))
            return
        order = next(self._orders)
        link.orders[order] = attach
        self._homes_of_sessions[attach.session] = link
        if attach.grant:
            link.grants[attach.grant] += 1
            self._homes[attach.grant] = link
        link.tell(Serve(order, attach, grant), connection.detach())

    async def cut_session(self, session: str, detail: str) -> None:
        """End a session for good: it may not attach again. `detail` says who gave the order."""
        self._cut[session] = None
        while len(self._cut) > CUT_REMEMBERED:
            del self._cut[next(iter(self._cut))]
        link = self._homes_of_sessions.get(session)
        if link is not None:
            await self._must(link, partial(CutSession, session=session, detail=detail), OBEY_SECONDS)

    @property
    def attached(self) -> list[str]:
        """The sessions that workers have."""
        return list(self._homes_of_sessions)

    def forget_absent(self) -> None:
        """Sessions that are not attached now have no right to come back without a further use of their grant."""
        for link in self.serving:
            link.tell(ForgetAbsent())

    # ---- rights

    async def take_policy(self, policy: Policy) -> None:
        """Put a policy in force everywhere, under the switch."""
        if not policy.enabled:
            await self._tell_switch(on=False)  # at once: the policy may be long
        self._policy = frozen = await freeze_aside(policy)
        await self._tell_policy(self.serving, frozen)
        if not policy.enabled:
            await self._tell_switch(on=self._switched_on)

    async def switch(self, *, on: bool) -> None:
        """The operator's switch. Off: nothing is open any more when this returns."""
        self._switched_on = on
        await self._tell_switch(on=on)

    async def end_grant(self, grant: str) -> None:
        """Cut what is open under a grant that was revoked."""
        link = self._homes.get(grant)
        if link is not None:
            done = await self._must(link, partial(EndGrant, grant=grant), OBEY_SECONDS)
            self._take(done.figures if done is not None else Figures())

    # ---- figures

    async def learn(self, grant: str) -> None:
        """Have the use of a grant told by the worker that counts it, if there is one and it answers."""
        link = self._homes.get(grant)
        if link is not None:
            with contextlib.suppress(WorkerGone, TimeoutError):
                self._take((await link.ask(partial(Ask, grant=grant), ANSWER_SECONDS)).figures)

    async def learn_all(self, *, seconds: float = ANSWER_SECONDS) -> list[WorkerLink]:
        """Have all workers report; those that did not answer in time."""
        silent: list[WorkerLink] = []

        async def ask(link: WorkerLink) -> None:
            try:
                figures = (await link.ask(Ask, seconds)).figures
            except WorkerGone:
                return
            except TimeoutError:
                silent.append(link)
                return
            self._last[link.number] = figures
            link.can_record = "log_unavailable" not in figures.troubles
            self._take(figures)

        await asyncio.gather(*(ask(link) for link in self.serving if link.ready))
        return silent

    async def kill_stuck(self) -> None:
        """Have all workers report, and kill who does not."""
        for link in await self.learn_all(seconds=SILENT_SECONDS):
            self._starter.kill(link.number)

    @property
    def sessions(self) -> list[SessionFigures]:
        """The attached sessions, as of the last report."""
        return [session for link in self.serving for session in self._last.get(link.number, Figures()).sessions]

    @property
    def totals(self) -> Figures:
        """Verdicts since the start, as of the last reports; what a dead worker had not reported is only in the log."""
        return _sum([self._totals, *self._last.values()])

    @property
    def troubles(self) -> list[tuple[str, str]]:
        """What does not work, as a code and a sentence."""
        found = [
            trouble for link in self.serving for trouble in self._last.get(link.number, Figures()).troubles.items()
        ]
        missing = self._count - sum(link.ready for link in self.serving)
        if missing:
            found.append(("worker_missing", f"{missing} of {self._count} workers do not serve at the moment."))
        return list(dict.fromkeys(found))

    # ---- processes

    async def start(self) -> bool:
        """Start all workers, and wait until they serve; False where one has ended instead."""
        for _ in range(self._count):
            self._start()
        links = tuple(self.workers.values())
        await asyncio.gather(*tuple(self._tasks))
        return all(link.ready for link in links)

    async def stop(self) -> None:
        """Have every worker end its sessions and finish its log; what has not ended in time is killed."""
        self._stopping = True
        for _, connection in self._waiting:
            connection.close()
        for link in self.serving:
            link.tell(Stop())
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._emptied_or_none()
        except TimeoutError:
            for number in self.workers:
                self._starter.kill(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._emptied_or_none()
        for task in self._tasks:
            task.cancel()

    async def _emptied_or_none(self) -> None:
        if self.workers:
            await self._emptied.wait()

    def _start(self) -> None:
        number = next(self._numbers)
        link = self.workers[number] = WorkerLink(
            number=number,
            channel=self._starter.start(number),
            loop=self._loop,
            on_gone=self._on_gone,
            on_record=self._on_record,
            on_closed=self._on_closed,
        )
        task = self._loop.create_task(self._bring_up(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring_up(self, link: WorkerLink) -> None:
        """Tell a new worker what holds, until what it was told is what holds; then it may serve."""
        while not link.closed:
            policy, on = self._policy, self._switched_on
            if policy is None:
                return
            await self._must(link, partial(Switch, on=on), OBEY_SECONDS)
            await self._tell_policy([link], policy)
            if policy is self._policy and on is self._switched_on and not link.closed:
                break
        if link.closed:
            return
        link.ready, link.began = True, self._loop.time()
        self.events.started(link)
        waiting, self._waiting = self._waiting, []
        for attach, connection in waiting:
            try:
                self.place(attach, connection)
            except Refusal:
                connection.close()  # the runner asks again, and is told

    def _on_started(self, started: Started) -> None:
        link = self.workers.get(started.worker)
        if link is not None:
            link.pid = started.pid

    def _on_exited(self, exited: Exited) -> None:
        link = self.workers.pop(exited.worker, None)
        if link is None:
            return
        link.drain()
        link.close()
        self._totals = _sum([self._totals, self._last.pop(link.number, Figures())])
        lost = self._lost.pop(link.number, 0)
        if not self.workers:
            self._emptied.set()
        if self._stopping and exited.code == 0:
            return
        self.events.ended(link, exited.code, lost)
        if not self._stopping:
            steady = link.began and self._loop.time() - link.began > STEADY_SECONDS
            self._pauses = 0 if steady else self._pauses + 1
            self._loop.call_later(min(FIRST_PAUSE * 2 ** min(self._pauses, 16), LONGEST_PAUSE), self._start_again)

    def _start_again(self) -> None:
        if not self._stopping:
            self._start()

    def _on_closed(self, link: WorkerLink) -> None:
        """All that a worker ever said has been heard. What it did not say is counted against whom it served."""
        for grant in link.grants:
            self._grants.lose(grant)
            self._homes.pop(grant, None)
        link.grants.clear()
        orders = list(link.orders.values())
        link.orders.clear()
        self._lost[link.number] = len(orders)
        for attach in orders:
            self._homes_of_sessions.pop(attach.session, None)
            self.events.lost(attach, link.number)
        self._starter.kill(link.number)  # it should have ended

    def _on_gone(self, link: WorkerLink, attach: Attach, gone: Gone) -> None:
        self._homes_of_sessions.pop(attach.session, None)
        grant = attach.grant
        if not grant:
            return
        if gone.used is not None:
            self._grants.tell(grant, gone.used)
        link.grants[grant] -= 1
        if not link.grants[grant]:
            del link.grants[grant]
            self._homes.pop(grant, None)
            link.tell(Release(grant))

    def _on_record(self, link: WorkerLink, asked: Record) -> None:
        try:
            if not link.grants[asked.grant]:
                raise LedgerUnavailable("another worker counts this grant")
            answer = Recorded(asked.number, self._grants.record(asked))
        except LedgerUnavailable as error:
            answer = Recorded(asked.number, error=str(error))
        link.tell(answer)

    # ---- words

    @property
    def serving(self) -> list[WorkerLink]:
        """The workers that have not ended."""
        return [link for link in self.workers.values() if not link.closed]

    def _home(self, grant: str) -> WorkerLink | None:
        home = self._homes.get(grant)
        if home is not None and not home.closed:
            return home
        ready = [link for link in self.serving if link.ready]
        return min(ready, key=lambda link: len(link.orders), default=None)

    def _take(self, figures: Figures) -> None:
        for grant, used in figures.used.items():
            self._grants.tell(grant, used)

    async def _tell_switch(self, *, on: bool) -> None:
        await asyncio.gather(*(self._must(link, partial(Switch, on=on), OBEY_SECONDS) for link in self.serving))

    async def _tell_policy(self, links: Iterable[WorkerLink], frozen: bytes) -> None:
        async def tell(link: WorkerLink) -> None:
            done = await self._must(link, TakePolicy, POLICY_SECONDS, channels.memory_file(frozen))
            if done is not None:
                link.log = done.log

        await asyncio.gather(*map(tell, links))

    async def _must(
        self, link: WorkerLink, make: Callable[[int], ToWorker], seconds: float, *descriptors: int
    ) -> Done | None:
        """Have a worker do something, or end it; None where it has ended."""
        try:
            return await link.ask(make, seconds, *descriptors)
        except WorkerGone:
            return None
        except TimeoutError:
            self._starter.kill(link.number)
        await link.ended.wait()  # the kernel ends it
        return None


def _sum(all_figures: Iterable[Figures]) -> Figures:
    every = list(all_figures)
    return Figures(
        allowed=sum(one.allowed for one in every),
        denied=sum(one.denied for one in every),
        failures=sum(one.failures for one in every),
    )
