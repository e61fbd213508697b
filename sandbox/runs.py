"""One foreground command, in a sandbox of its own or in a session's: its streams, its time limit, its honest end.

Whoever waits for a run may be cancelled at any moment: everything of the command is then dead before the cancellation
goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandbox import census
from sandbox.children import Child, finish
from sandbox.live import GRACE, Live, Workshop, open_live
from sandbox.output import Budget, Pipe
from sandbox.protect import Finding
from sandbox.rights import Command, Rights
from sandbox.streams import Streams

TIMED_OUT = 124
MOST_LEFT = 512  # pipes of one session that are read though their calls are over

# Called with `started` and the session's id, then with `stdout` or `stderr` and what was written.
type Emit = Callable[[str, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended. `code` is its own, 128+n for signal n, 124 for a time-out.

    `dropped`: bytes of output beyond the bound. `set_aside`: what was made harmless in the workspace, for a command in
    a sandbox of its own. `session_ended`: its processes could only be ended together with the whole session.
    """

    code: int
    timed_out: bool = False
    dropped: int = 0
    set_aside: tuple[Finding, ...] = ()
    session_ended: bool = False


async def run_alone(workshop: Workshop, command: Command, rights: Rights, emit: Emit) -> Result:
    """Run a command in a sandbox of its own. Raises LaunchError."""
    streams = Streams(command.stdin, Budget(rights.limits.output_bytes))
    try:
        live = await open_live(workshop, command, rights, streams=streams)
    except BaseException:
        streams.abandon()
        raise
    watched = _Watched(
        child=live.child, session=live.id, shared=False, ask=live.ask_to_end, end=partial(_end_alone, live)
    )
    try:
        code, timed_out = await _attend(watched, streams, emit, command.limit(rights))
    finally:
        await finish(live.close())
    return Result(
        code=code if timed_out else live.done.result(),
        timed_out=timed_out,
        dropped=streams.budget.dropped,
        set_aside=live.findings,
        session_ended=False,
    )


async def _end_alone(live: Live) -> None:
    await live.close()


@dataclass(slots=True)
class SessionCalls:
    """The calls of one session."""

    live: Live
    _left: list[Pipe] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live.expect_entries()

    async def run(self, command: Command, emit: Emit) -> Result:
        """Run a command in the session. What it leaves in the background stays; a stop ends that, too."""
        live = self.live
        before = await self._count()
        streams = Streams(command.stdin, Budget(live.rights.limits.output_bytes))
        try:
            child = await live.enter(command.argv, streams.stdio, directory=command.directory)
        except asyncio.CancelledError:
            streams.abandon()
            await finish(census.end_newcomers(before, live.processes))  # it may have begun in that moment
            raise
        except BaseException:
            streams.abandon()
            raise
        over: list[bool] = []
        watched = _Watched(
            child=child,
            session=live.id,
            shared=True,
            ask=partial(child.send, 15),
            end=partial(self._end, before, child, over),
        )
        try:
            code, timed_out = await _attend(watched, streams, emit, command.limit(live.rights))
        except BaseException:
            await finish(self._end(before, child, over))
            raise
        finally:
            live.expect_entries()
        self._leave(streams)
        return Result(code=code, timed_out=timed_out, dropped=streams.budget.dropped, session_ended=bool(over))

    def _leave(self, streams: Streams) -> None:
        """Forget what nobody can write to any more. Of the rest the oldest is closed: a payload may keep every pipe."""
        self._left = [pipe for pipe in (*self._left, *(pipe for _, pipe in streams.pipes())) if pipe.is_open]
        for pipe in self._left[:-MOST_LEFT]:
            pipe.close()

    async def _count(self) -> census.Census:
        """Its processes, and the one that only waits among them: it is born a moment after the session was opened."""
        while True:
            found = self.live.count()
            if self.live.child.ended.done() or any(one.parent == census.FIRST for one in found.values()):
                return found
            await asyncio.sleep(census.POLL)

    async def _end(self, before: census.Census, child: Child, over: list[bool]) -> None:
        child.kill()
        await child.wait()
        if not await census.end_newcomers(before, self.live.processes):
            over.append(True)  # faster than we can count: nothing less stops it
            await self.live.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """`shared`: others of the session may hold the command's pipes when it has ended; they are not waited for."""

    child: Child
    session: str
    shared: bool
    ask: Callable[[], None]
    end: Callable[[], Awaitable[None]]


async def _attend(watched: _Watched, streams: Streams, emit: Emit, limit: float | None) -> tuple[int, bool]:
    """Pass the output on until the command has ended; its exit code, and whether it was ended for its time."""
    feeding = [asyncio.ensure_future(one) for one in streams.begin()]
    pumps = [pipe.pump(partial(emit, name), streams.budget) for name, pipe in streams.pipes()]
    try:
        await emit("started", watched.session.encode())
        timed_out = not await _ends_within(watched.child, limit, pumps)
        if timed_out:
            watched.ask()
            await _ends_within(watched.child, GRACE, pumps)
            await watched.end()  # also what it left behind
        code = await watched.child.wait()
        if watched.shared:
            for _, pipe in streams.pipes():
                pipe.finish()
        for task in pumps:
            await task
    except BaseException:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        raise
    finally:
        for task in feeding:
            task.cancel()
        await asyncio.gather(*feeding, return_exceptions=True)
    return (TIMED_OUT if timed_out else code), timed_out


async def _ends_within(child: Child, limit: float | None, pumps: list[asyncio.Task[None]]) -> bool:
    """Wait for the end; False when the limit came first. A reader of the output that fails raises here."""
    loop = asyncio.get_running_loop()
    deadline = None if limit is None else loop.time() + limit
    waiting: set[asyncio.Future[Any]] = {*pumps}
    while not child.ended.done():
        left = None if deadline is None else max(0.0, deadline - loop.time())
        done, _ = await asyncio.wait([child.ended, *waiting], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return False
        for task in done & waiting:
            task.result()
            waiting.discard(task)
    return True
