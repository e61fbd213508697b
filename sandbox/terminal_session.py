"""One terminal: what the runner has its tmux do, and a person who attaches to it.

Everything the runner wants of it is a client that joins the sandbox, under the same restrictions: the runner never
speaks to a socket that a payload owns.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import struct
import termios
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sandbox import tmux
from sandbox.children import Child
from sandbox.errors import Code, LaunchError
from sandbox.live import Live
from sandbox.output import CHUNK, Budget, readable, write_all
from sandbox.rights import Rights
from sandbox.streams import Streams
from sandbox.tmux import PaneState

CLIENT_SECONDS = 30.0
LEAVE_SECONDS = 5.0  # a busy machine takes its time; the person has left by then
GOING_SECONDS = 0.5  # from what a client of an ending server hears to the sandbox's end
MAX_ANSWER, MAX_CAPTURE = 1 << 16, 32 << 20  # bytes; the server is the payload's to replace
MAX_COMPLAINT = 200  # characters
# Where a terminal may be described (terminfo(5)), and what is taken for one of which the host knows nothing.
TERMINFO = ("/etc/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo")
KNOWN_TERM = "xterm-256color"
TIOCSPTLCK = 0x40045431
TIOCGPTPEER = 0x5441  # ioctl_tty(2): the other end of a pseudo-terminal, without a path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tmux client said."""

    code: int
    out: bytes
    err: bytes


@dataclass(slots=True, kw_only=True)
class TerminalSession:
    """One terminal. `name` is any text, for people. `state` is the last that was seen."""

    id: str
    name: str
    live: Live
    opened_at: float
    state: PaneState | None
    running: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def has_ended(self) -> bool:
        """Whether its shell, and so everything in it, has ended."""
        return self.live.child.ended.done()

    @property
    def rights(self) -> Rights:
        """What it was opened with."""
        return self.live.rights

    async def client(
        self, argv: tuple[str, ...], stdin: bytes = b"", *, most: int = MAX_ANSWER, seconds: float = CLIENT_SECONDS
    ) -> Answer:
        """Run a command in the sandbox, a tmux client mostly, to its end. Raises LaunchError.

        Of its output `most` bytes are kept; it is given up after so many seconds.
        """
        streams = Streams(stdin, Budget(most))
        try:
            async with asyncio.timeout(seconds):
                entry = self.live.built.entry(argv, streams.stdio)
                child = await self.live.start(entry.as_passer() if tmux.is_client(argv) else entry)
        except TimeoutError as error:
            streams.abandon()
            raise _unanswered() from error
        except BaseException:
            streams.abandon()
            raise
        found: dict[str, list[bytes]] = {name: [] for name, _ in streams.pipes()}

        async def keep(name: str, chunk: bytes) -> None:
            found[name].append(chunk)

        work = [asyncio.ensure_future(one) for one in streams.begin()]
        work += [pipe.pump(partial(keep, name), streams.budget) for name, pipe in streams.pipes()]
        try:
            async with asyncio.timeout(seconds):
                code = await child.wait()
                for _, pipe in streams.pipes():
                    pipe.finish()
                await asyncio.gather(*work)
        except TimeoutError as error:
            raise _unanswered() from error
        finally:
            child.kill()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        answer = Answer(code, b"".join(found["stdout"]), b"".join(found["stderr"]))
        if streams.budget.dropped:
            cause = f"It answered with more than {most} bytes."
            raise LaunchError(Code.BAD_CALL, cause, "Read the screen alone, or clear what is kept of it.")
        return answer

    async def ask(
        self, argv: tuple[str, ...], stdin: bytes = b"", *, most: int = MAX_ANSWER, seconds: float = CLIENT_SECONDS
    ) -> bytes:
        """Run a tmux client that must succeed; what it printed. Raises LaunchError."""
        answer = await self.client(argv, stdin, most=most, seconds=seconds)
        if answer.code and await self._is_ending():
            how = self.live.child.ended.result()
            raise LaunchError(Code.SESSION_OVER, f"The terminal has ended (exit code {how}).", "Open a new one.")
        if answer.code:
            text = " ".join(tmux.parse_lines(answer.err.decode(errors="replace").strip()))[:MAX_COMPLAINT]
            raise LaunchError(Code.SESSION_OVER, f"The terminal does not do that ({text}).", "Open a new one.")
        return answer.out

    async def _is_ending(self) -> bool:
        """Whether it has ended, or does just now: a client of a server that ends hears of it before the sandbox has."""
        await asyncio.wait([self.live.child.ended], timeout=GOING_SECONDS)
        return self.has_ended

    async def look(self, argv: tuple[str, ...] = tmux.ask_state()) -> PaneState:
        """What the pane is like now; `argv` is a client that prints it. Raises LaunchError."""
        state = tmux.parse_state((await self.ask(argv)).decode(errors="replace"))
        if state is None:
            raise LaunchError(Code.SESSION_OVER, "The terminal's pane is gone.", "Open a new one.")
        self.state = state
        return state

    async def send(self, text: str, keys: tuple[str, ...]) -> None:
        """Paste a text and press keys. Raises LaunchError."""
        if text:
            buffer = f"wicketgate-{secrets.token_hex(8)}"
            await self.ask(tmux.load_text(buffer), text.encode())
            await self.ask(tmux.paste(buffer))
        if keys:
            await self.ask(tmux.press(keys))

    async def read(self, *, scrollback: bool, join: bool) -> list[str]:
        """The lines shown, or all that are kept. Raises LaunchError."""
        shown = await self.ask(tmux.capture(scrollback=scrollback, join=join), most=MAX_CAPTURE)
        return tmux.parse_lines(shown.decode(errors="replace"))

    async def resize(self, columns: int, rows: int) -> None:
        """Change its size. Raises LaunchError."""
        await self.ask(tmux.resize(columns, rows))
        await self.look()

    async def attach(self, columns: int, rows: int, term: str) -> "AttachedClient":
        """Start a tmux client on a pseudo-terminal of the sandbox's own. Raises LaunchError."""
        # Not the host's: nothing in there ever holds a terminal that belongs to anything outside.
        try:
            flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK
            master = os.open(self.live.processes.path("root/dev/pts/ptmx"), flags)
        except (FileNotFoundError, ProcessLookupError, PermissionError) as error:  # of a process that has just ended
            raise LaunchError(Code.SESSION_OVER, "The terminal has ended.", "Open a new one.") from error
        peer = -1
        try:
            fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
            peer = fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            set_size(master, columns, rows)
            entry = self.live.built.entry(tmux.attach(), {0: peer, 1: peer, 2: peer}).as_passer()
            term = term if _is_described(term) else KNOWN_TERM
            environment = tuple((name, term if name == "TERM" else value) for name, value in entry.environment)
            child = await self.live.start(entry._replace(environment=environment, controlling=True))
        except BaseException:
            os.close(master)
            raise
        finally:
            if peer >= 0:
                os.close(peer)
        return AttachedClient(master=master, child=child)


@dataclass(slots=True, kw_only=True)
class AttachedClient:
    """A person's client: the near end of its pseudo-terminal (non-blocking, owned), and its process."""

    master: int
    child: Child

    def resize(self, columns: int, rows: int) -> None:
        """Tell it the person's new size."""
        set_size(self.master, columns, rows)

    async def show(self) -> bytes:
        """What it shows next; empty at its end."""
        while True:
            try:
                return os.read(self.master, CHUNK)
            except BlockingIOError:
                await readable(self.master, asyncio.get_running_loop().create_future())
            except OSError:
                return b""  # EIO: it has closed its end

    async def type(self, keys: bytes) -> None:
        """Type keys, as fast as it takes them. Once it has ended they are nobody's."""
        with contextlib.suppress(OSError):
            await write_all(self.master, keys)

    async def close(self) -> None:
        """Detach, once everything that was typed has been read: the end of a terminal takes its unread input away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(self.type(tmux.LEAVE_KEY), self._see_it_leave())
        if self.master >= 0:
            os.close(self.master)
            self.master = -1
        self.child.send(1)  # SIGHUP, as from a terminal that has gone
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.child.wait()
        self.child.kill()

    async def _see_it_leave(self) -> None:
        while await self.show():  # it says goodbye, and must not be held up by that
            pass


def _unanswered() -> LaunchError:
    return LaunchError(Code.SANDBOX_FAILED, "tmux did not answer.", "Close the terminal.")


def _is_described(term: str) -> bool:
    """Whether tmux will know a terminal: inside are the same descriptions as outside."""
    return any(Path(place, term[:1], term).exists() for place in TERMINFO)


def set_size(fd: int, columns: int, rows: int) -> None:
    """Set a pseudo-terminal's size."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
