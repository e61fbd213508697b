"""Have a terminal's own shell run a command line, know when it has ended and how, and end it when its time is up.

Nothing of this is read off the screen. The shell is told to read a file, which is one short line of input, whatever the
command does with its standard input; what the pane shows is copied to a FIFO from before that line on, so no length of
output and no size of the scrollback matters; the marks that the file prints are control sequences which are not shown,
with a number that no output can hold by chance. A mark that comes while another program has the terminal is not the
shell's, and does not count.
"""

import asyncio
import contextlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from sandbox import census, tmux
from sandbox.errors import Code, LaunchError
from sandbox.output import Budget
from sandbox.streams import Streams
from sandbox.terminal_session import CLIENT_SECONDS, TerminalSession

INTERRUPT_SECONDS, PROMPT_SECONDS, KILL_SECONDS = 0.3, 0.5, 1.0
ENDING_SECONDS = 2.0  # for an answer of tmux, which the command may have stopped, when the command's time is up
WAITING_MARKS = 16
UNBOUNDED = 1 << 62
_PREPARE = 'umask 077 && mkdir "$1" && cat >"$1/command" && printf %s "$2" >"$1/run" && mkfifo "$1/shown"'
_LONGEST_MARK = 64
# Of any run: a pattern of each run's own would stay in `re`, which remembers the last 512.
_MARK = re.compile(rb"\x1b\]7777;([0-9a-f]{32});([a-z0-9]{1,8})\x07")
# ECMA-48: CSI sequences, OSC and other strings, two-byte escapes; then what moves the cursor only.
_CONTROLS = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_C1 = re.compile(r"[\x80-\x9f]")  # the same as single characters, to terminals that know them


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalRun:
    """How it ended. `code`: None where it did not end by itself. `shell_replaced`: only a new shell ended it."""

    code: int | None
    output: str
    timed_out: bool = False
    dropped: int = 0
    shell_replaced: bool = False


class Busy(Exception):  # noqa: N818
    """The shell has another program in the foreground, or another command line is being run."""


@dataclass(slots=True)
class Marks:
    """Finds the marks in what is shown, however it is cut, and keeps what is between them."""

    number: str
    budget: Budget
    kept: bytearray = field(default_factory=bytearray)
    begun: bool = False
    ended_at: int | None = None  # how much was kept at the last mark that tells an exit code
    # The newest: what floods it with marks is itself in front, and its marks do not count.
    seen: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(WAITING_MARKS))
    _rest: bytes = b""

    async def feed(self, data: bytes) -> None:
        """Take what was shown next."""
        data, at = self._rest + data, 0
        for found in _MARK.finditer(data):
            if found[1] == self.number.encode():
                self._keep(data[at : found.start()])
                at = found.end()
                self._note(found[2].decode())
        data = data[at:]
        start = data.rfind(b"\x1b", max(0, len(data) - _LONGEST_MARK))
        cut = len(data) if start < 0 else start
        self._keep(data[:cut])
        self._rest = data[cut:]

    def _note(self, word: str) -> None:
        self.ended_at = len(self.kept) if word.isdigit() else self.ended_at
        self.begun = self.begun or word == "begin"
        if self.seen.full():
            self.seen.get_nowait()
        self.seen.put_nowait(word)

    def _keep(self, data: bytes) -> None:
        if self.begun:
            self.kept += self.budget.take(data)

    def text(self, *, to_the_mark: bool) -> str:
        """What was shown since the first mark, to the last one or to now, without control sequences."""
        kept = bytes(self.kept[: self.ended_at]) if to_the_mark else bytes(self.kept)
        plain = _CONTROLS.sub(b"", kept).replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode(errors="replace")
        return _C1.sub("", plain)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    terminal: TerminalSession
    marks: Marks
    shell: int  # the sandbox's number of it, as all numbers here
    before: census.Census

    def is_in_front(self) -> bool:
        """Whether the shell itself reads what is typed."""
        return self.terminal.live.processes.is_in_front(self.shell)

    @property
    def place(self) -> str:
        return f"/run/wicketgate-{self.marks.number}"

    def mark(self, word: str) -> str:
        return rf"printf '\033]7777;{self.marks.number};{word}\007'"

    def script(self) -> str:
        """Nothing but what the shell does itself: at the last mark no other program has the terminal."""
        return f'{self.mark("begin")}\neval "$(<{self.place}/command)"\n{self.mark("%s")} "$?"\n'


async def run_in_terminal(terminal: TerminalSession, command: str, seconds: float) -> TerminalRun:
    """Run a command line in the terminal's shell. Raises Busy and LaunchError."""
    if terminal.running.locked():
        raise Busy("another command line is being run in it")
    async with terminal.running:
        attempt = await _begin(terminal, command)
        streams = Streams(b"", Budget(UNBOUNDED))
        try:
            copier = await terminal.live.enter(("/usr/bin/cat", f"{attempt.place}/shown"), streams.stdio)
        except BaseException:
            streams.abandon()
            raise
        streams.begin()
        copying = streams.out.pump(attempt.marks.feed, streams.budget)
        complaining = _drain(streams)
        try:
            await terminal.ask(tmux.pipe_to(f"{attempt.place}/shown"))
            await _type(terminal, f" . {attempt.place}/run")
            return await _attend(attempt, seconds)
        finally:
            try:
                await _clear_away(attempt)
            finally:
                copier.kill()
                for task in (copying, complaining):
                    task.cancel()
                await asyncio.gather(copying, complaining, return_exceptions=True)


async def _clear_away(attempt: _Attempt) -> None:
    for words in (tmux.stop_pipe(), ("/usr/bin/rm", "-rf", attempt.place)):
        with contextlib.suppress(LaunchError, OSError):
            await attempt.terminal.client(words)


def _drain(streams: Streams) -> asyncio.Task[None]:
    async def ignore(_chunk: bytes) -> None:
        return

    assert streams.err is not None
    return streams.err.pump(ignore, Budget(0))


async def _begin(terminal: TerminalSession, command: str) -> _Attempt:
    state = await terminal.look()
    if not terminal.live.processes.is_in_front(state.pid):
        raise Busy("a program has the terminal; send it keys, or wait for its end")
    marks = Marks(secrets.token_hex(16), Budget(terminal.live.rights.limits.output_bytes))
    attempt = _Attempt(terminal=terminal, marks=marks, shell=state.pid, before=terminal.live.count())
    prepare = ("/bin/bash", "-c", _PREPARE, "bash", attempt.place, attempt.script())
    answer = await terminal.client(prepare, command.encode())
    if answer.code:
        cause = f"The command cannot be handed to the shell ({answer.err.decode(errors='replace').strip()})."
        raise LaunchError(Code.BAD_CALL, cause, "Free space in the sandbox's /run.")
    return attempt


async def _type(terminal: TerminalSession, line: str, seconds: float = CLIENT_SECONDS) -> None:
    for words in (tmux.press(("C-u",)), tmux.type_text(line), tmux.press(("Enter",))):
        await terminal.ask(words, seconds=seconds)


async def _attend(attempt: _Attempt, seconds: float) -> TerminalRun:
    marks = attempt.marks
    code = await _wait_for_code(attempt, seconds)
    if code is not None or attempt.terminal.has_ended:
        return TerminalRun(code=code, output=marks.text(to_the_mark=code is not None), dropped=marks.budget.dropped)
    output, dropped = marks.text(to_the_mark=False), marks.budget.dropped  # before what ending it shows
    replaced = False
    try:
        replaced = await _end(attempt)
    except (LaunchError, OSError):
        # The command has taken the shell's place, or tmux's, or has stopped it: only together with it does it end.
        await attempt.terminal.live.close()
    return TerminalRun(code=None, output=output, timed_out=True, dropped=dropped, shell_replaced=replaced)


async def _wait_for_code(attempt: _Attempt, seconds: float) -> int | None:
    """The command's exit code; None when the time is up or the terminal has ended."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (left := deadline - loop.time()) > 0 and not attempt.terminal.has_ended:
        word = await _next_mark(attempt, left)
        # Only the shell's own mark counts: a program in the foreground may print what it likes.
        if word is not None and word.isdigit() and attempt.is_in_front():
            return int(word)
    return None


async def _next_mark(attempt: _Attempt, seconds: float) -> str | None:
    getting = asyncio.ensure_future(attempt.marks.seen.get())
    try:
        await asyncio.wait(
            _futures(getting, attempt.terminal.live.child.ended),
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


def _futures(*them: "asyncio.Future[Any]") -> "list[asyncio.Future[Any]]":
    return list(them)


async def _end(attempt: _Attempt) -> bool:
    """End the command: politely, then by force, at last together with its shell; whether that was needed."""
    terminal = attempt.terminal
    processes = terminal.live.processes
    await terminal.ask(tmux.press(("C-c",)), seconds=ENDING_SECONDS)
    at_prompt = await _is_at_prompt(attempt, INTERRUPT_SECONDS)
    deadline = asyncio.get_running_loop().time() + KILL_SECONDS
    while not at_prompt and asyncio.get_running_loop().time() < deadline:
        processes.kill(_newcomers(attempt))
        at_prompt = await _has_mark(attempt, "prompt", 0.1)
    if not at_prompt:
        await _replace_shell(attempt)
    ended = await census.end_newcomers(attempt.before, processes, () if not at_prompt else (attempt.shell,))
    if not ended:
        await terminal.live.close()
    return not at_prompt


def _newcomers(attempt: _Attempt) -> set[int]:
    now = attempt.terminal.live.count()
    return census.newcomers(attempt.before, now, {census.FIRST, attempt.shell})


async def _is_at_prompt(attempt: _Attempt, seconds: float) -> bool:
    """Whether the shell reads a line: an interrupted one leaves the file that it was told to read without a mark."""
    if await _has_mark(attempt, "", seconds):
        return True
    await _type(attempt.terminal, f" {attempt.mark('prompt')}", ENDING_SECONDS)
    return await _has_mark(attempt, "prompt", PROMPT_SECONDS)


async def _has_mark(attempt: _Attempt, wanted: str, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (left := deadline - loop.time()) > 0:
        word = await _next_mark(attempt, left)
        if word is not None and (word == wanted or word.isdigit()) and attempt.is_in_front():
            return True
    return False


async def _replace_shell(attempt: _Attempt) -> None:
    terminal = attempt.terminal
    await terminal.ask((*tmux.CLIENT, "set-option", "-g", "remain-on-exit", "on"), seconds=ENDING_SECONDS)
    terminal.live.processes.kill({attempt.shell, *_newcomers(attempt)})
    await terminal.ask(tmux.replace_shell(), seconds=ENDING_SECONDS)
    await terminal.ask((*tmux.CLIENT, "set-option", "-g", "remain-on-exit", "off"), seconds=ENDING_SECONDS)
