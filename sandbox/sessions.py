"""Sessions: one sandbox for several calls. Its first process only waits; each call joins the sandbox.

What a call leaves running in the background, and what it wrote to /tmp or its home, is there for the next one, and
goes when the session is closed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sandbox.live import Live, Workshop, open_live
from sandbox.rights import Command, Rights
from sandbox.room import Room
from sandbox.runs import Emit, Result, SessionCalls

AT_ONCE = 2048
_WAITS = Command(argv=("/usr/bin/sleep", "infinity"))


@dataclass(slots=True, kw_only=True)
class Session:
    """An open session."""

    id: str
    live: Live
    calls: SessionCalls
    opened_at: float


class Sessions:
    """All sessions of a runner. `clock` gives seconds since the epoch."""

    def __init__(self, workshop: Workshop, clock: Callable[[], float]) -> None:
        self._workshop = workshop
        self._clock = clock
        self._open: dict[str, Session] = {}
        self._room = Room(AT_ONCE, "sessions are open", "Close some.")

    def everything(self) -> list[Session]:
        """The open ones, oldest first."""
        return list(self._open.values())

    def show(self, identity: str) -> Session | None:
        """An open one."""
        return self._open.get(identity)

    async def open(self, rights: Rights) -> Session:
        """Open one. Raises LaunchError."""
        with self._room.for_one_more(len(self._open)):
            live = await open_live(self._workshop, _WAITS, rights)
            session = Session(id=live.id, live=live, calls=SessionCalls(live), opened_at=self._clock())
            self._open[session.id] = session
        live.done.add_done_callback(lambda _: self._open.pop(session.id, None))
        return session

    async def run(self, session: Session, command: Command, emit: Emit) -> Result:
        """Run a command in it. Raises LaunchError."""
        return await session.calls.run(command, emit)

    async def close(self, session: Session) -> None:
        """Kill everything in it and undo it."""
        await session.live.close()

    async def close_all(self) -> None:
        """Close all."""
        for session in self.everything():
            await self.close(session)
