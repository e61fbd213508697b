"""Terminals: a tmux server in a sandbox of its own, for an agent that types and for a person who attaches.

tmux is the sandbox's first command, so the end of either is the end of both. All of a runner's are opened, listed and
forgotten here; what one of them does is `terminal_session.py`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox import tmux
from sandbox.errors import Code, LaunchError
from sandbox.live import Live, Workshop, open_live
from sandbox.rights import Command, Rights
from sandbox.room import Room
from sandbox.spec import Mode, Terminal
from sandbox.terminal_session import TerminalSession
from sandbox.tmux import PaneState

AT_ONCE, KEPT = 256, 100
READY_SECONDS, POLL = 10.0, 0.002
ATTEMPTS = 2  # at opening one
_LOST = {Code.SESSION_OVER, Code.SANDBOX_FAILED}  # of one that nobody has used yet

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTerminal:
    """What is kept of one that has ended, and nothing of its sandbox."""

    id: str
    name: str
    rights: Rights
    opened_at: float
    state: PaneState | None

    @property
    def has_ended(self) -> bool:
        """It has."""
        return True


class Terminals:
    """All terminals of a runner. `clock` gives seconds since the epoch."""

    def __init__(self, workshop: Workshop, clock: Callable[[], float]) -> None:
        self._workshop = workshop
        self._clock = clock
        self._all: dict[str, TerminalSession | EndedTerminal] = {}
        self._room = Room(AT_ONCE, "terminals are open", "Close some.")

    def everything(self) -> list[TerminalSession | EndedTerminal]:
        """The open ones and the last that have ended, oldest first."""
        return list(self._all.values())

    def show(self, identity: str) -> TerminalSession | EndedTerminal | None:
        """One of them."""
        return self._all.get(identity)

    async def open(
        self, rights: Rights, size: tuple[int, int], *, directory: str = "", name: str = ""
    ) -> TerminalSession:
        """Open one of `size` columns and rows. Raises LaunchError."""
        if rights.mode is Mode.FULL_ACCESS:
            cause = (
                "A terminal needs unix sockets, and full access has none, so that no socket of the host is reachable."
            )
            raise LaunchError(Code.BAD_CALL, cause, "Use a run, a session or a job.")
        with self._room.for_one_more(sum(not one.has_ended for one in self._all.values())):
            terminal = await self._open(rights, size, directory=directory, name=name)
            self._all[terminal.id] = terminal
        terminal.live.done.add_done_callback(lambda _: self._keep(terminal))
        self._forget_oldest()
        return terminal

    async def _open(self, rights: Rights, size: tuple[int, int], *, directory: str, name: str) -> TerminalSession:
        """Open one, and another in its place where tmux is lost before the shell is anybody's."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._begin(rights, size, directory=directory, name=name)
            except LaunchError as error:
                if error.code not in _LOST:
                    raise
                _log.warning("A terminal was lost while it was opened, another is tried. %s", error)
        return await self._begin(rights, size, directory=directory, name=name)

    async def _begin(self, rights: Rights, size: tuple[int, int], *, directory: str, name: str) -> TerminalSession:
        live = await open_live(
            self._workshop,
            Command(argv=tmux.SERVER, directory=directory),
            rights,
            terminal=Terminal(term=tmux.TERM),
        )
        terminal = TerminalSession(id=live.id, name=name, live=live, opened_at=self._clock(), state=None)
        try:
            await _wait_for_server(live)
            await terminal.look(tmux.setup(*size))
        except BaseException:
            await live.close()
            raise
        return terminal

    async def close(self, terminal: TerminalSession) -> None:
        """Kill everything in it and undo it."""
        await terminal.live.close()

    async def close_all(self) -> None:
        """Close all."""
        for terminal in self.everything():
            if isinstance(terminal, TerminalSession):
                await self.close(terminal)

    def _keep(self, terminal: TerminalSession) -> None:
        """Keep what is told of one that has ended, in its place."""
        if self._all.get(terminal.id) is not terminal:
            return
        self._all[terminal.id] = EndedTerminal(
            id=terminal.id,
            name=terminal.name,
            rights=terminal.rights,
            opened_at=terminal.opened_at,
            state=terminal.state,
        )

    def _forget_oldest(self) -> None:
        over = [one.id for one in self._all.values() if one.has_ended]
        for identity in over[: max(0, len(over) - KEPT)]:
            del self._all[identity]


async def _wait_for_server(live: Live) -> None:
    """Wait until tmux listens. Only the kernel is asked: nothing of a payload's is opened."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_SECONDS
    while not _is_listening(live):
        if live.child.ended.done() or loop.time() > deadline:
            cause = "tmux did not start in the sandbox."
            raise LaunchError(Code.SANDBOX_FAILED, cause, "Install tmux 3.2 or newer on the host.")
        await asyncio.sleep(POLL)


def _is_listening(live: Live) -> bool:
    try:
        return tmux.is_listening(Path(live.processes.path("net/unix")).read_text(errors="replace"))
    except OSError:
        return False
