"""`wicketgate term`: terminals of a running runner."""

import asyncio
import os
import signal
import sys
import termios
import tty
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec

from wicketgate.commands.runner_access import (
    ask,
    authority_options,
    convert,
    json_option,
    read_authority,
    show,
    socket_option,
)
from wicketgate.runner import schema
from wicketgate.runner.client import Runner, TerminalCall
from wicketgate.shown import Shown
from wicketgate.speech import say, write_all

DETACH = b"\x1d"  # Ctrl-], as in telnet
TIMED_OUT = 124
MOST = 1000  # columns or rows
ENDING = (signal.SIGTERM, signal.SIGHUP)


@click.group(name="term")
def term() -> None:
    """Open terminals in sandboxes, type into them, read them, attach to them."""


@term.command(name="open")
@socket_option
@json_option
@authority_options
@click.option("--name", default="", help="A name for people.")
@click.option("--columns", type=int, default=80, show_default=True)
@click.option("--rows", type=int, default=24, show_default=True)
@click.option("--directory", default="", help="Where the shell begins, relative to the workspace.")
def open_terminal(  # noqa: PLR0913, PLR0917  one parameter an option
    socket: Path | None, as_json: bool, name: str, columns: int, rows: int, directory: str, **options: Any
) -> int:
    """Open a terminal and print its id."""
    authority = read_authority(options)
    call = convert({"columns": columns, "rows": rows, "directory": directory}, TerminalCall)
    opened = ask(socket, lambda runner: runner.open_terminal(call, authority, name=name), as_json=as_json)
    if isinstance(opened, int):
        return opened
    if as_json:
        return show(opened)
    click.echo(opened.id)
    return 0


@term.command(name="list")
@socket_option
@json_option
def list_terminals(socket: Path | None, as_json: bool) -> int:
    """List the terminals."""
    found = ask(socket, lambda runner: runner.terminals(), as_json=as_json)
    if isinstance(found, int):
        return found
    if as_json:
        return show(schema.TerminalList(terminals=found))
    for one in found:
        click.echo(f"{one.id}  {one.state:<6} {one.columns}x{one.rows}  {one.name!r}")
    return 0


@term.command()
@socket_option
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Press a key afterwards: Enter, C-c, Up …")
@click.argument("identity", metavar="TERMINAL")
@click.argument("text", default="")
def send(socket: Path | None, keys: tuple[str, ...], identity: str, text: str) -> int:
    """Paste TEXT into TERMINAL, then press keys."""
    convert({"text": text, "keys": list(keys)}, schema.SendToTerminal)
    sent = ask(socket, lambda runner: runner.send(identity, text, keys=keys))
    return sent if isinstance(sent, int) else 0


@term.command()
@socket_option
@json_option
@click.option("--scrollback", is_flag=True, help="Everything that is kept, not only the screen.")
@click.option("--join", is_flag=True, help="Print wrapped lines as one.")
@click.argument("identity", metavar="TERMINAL")
def read(socket: Path | None, as_json: bool, scrollback: bool, join: bool, identity: str) -> int:
    """Print what TERMINAL shows."""
    screen = ask(socket, lambda runner: runner.read(identity, scrollback=scrollback, join=join), as_json=as_json)
    if isinstance(screen, int):
        return screen
    if as_json:
        return show(screen)
    sys.stdout.write("".join(f"{line}\n" for line in screen.lines))
    return 0


@term.command(name="run", context_settings={"allow_interspersed_args": False})
@socket_option
@json_option
@click.option("--timeout", type=float, default=60.0, show_default=True, metavar="S")
@click.argument("identity", metavar="TERMINAL")
@click.argument("command")
def run_command(socket: Path | None, as_json: bool, timeout: float, identity: str, command: str) -> int:
    """Have the shell of TERMINAL run COMMAND; the exit code is the command's, 124 when its time was up."""
    convert({"command": command, "timeout": timeout}, schema.RunInTerminal)
    done = ask(socket, lambda runner: runner.run_in_terminal(identity, command, seconds=timeout), as_json=as_json)
    if isinstance(done, int):
        return done
    if as_json:
        show(done)
    else:
        sys.stdout.write(done.output)
        sys.stdout.flush()
        if done.timed_out:
            say("the command was ended when its time was up" + ("; the shell is new" if done.shell_replaced else ""))
        elif done.code is None:
            say("the terminal has ended, and with it the command")
    return TIMED_OUT if done.timed_out else done.code if done.code is not None else 125


@term.command()
@socket_option
@click.argument("identity", metavar="TERMINAL")
@click.argument("columns", type=int)
@click.argument("rows", type=int)
def resize(socket: Path | None, identity: str, columns: int, rows: int) -> int:
    """Change the size of TERMINAL."""
    convert({"columns": columns, "rows": rows}, schema.ResizeTerminal)
    done = ask(socket, lambda runner: runner.resize(identity, columns, rows))
    return done if isinstance(done, int) else 0


@term.command()
@socket_option
@json_option
@click.argument("identity", metavar="TERMINAL")
def close(socket: Path | None, as_json: bool, identity: str) -> int:
    """End everything in TERMINAL."""
    closed = ask(socket, lambda runner: runner.close_terminal(identity), as_json=as_json)
    if isinstance(closed, int):
        return closed
    return show(closed) if as_json else 0


@term.command()
@socket_option
@click.argument("identity", metavar="TERMINAL")
def attach(socket: Path | None, identity: str) -> int:
    """Put this terminal on TERMINAL. Ctrl-] leaves it; it goes on."""
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError("Standard input and output must be a terminal.")

    async def bridge(runner: Runner) -> int:
        columns, rows = _size()
        name = os.environ.get("TERM") or "xterm-256color"
        async with runner.attach(identity, columns=columns, rows=rows, term=name) as peer:
            before, shown = termios.tcgetattr(0), Shown()
            try:
                tty.setraw(0, termios.TCSADRAIN)  # what was typed meanwhile is for it
                return await _bridge(peer, shown)
            finally:
                write_all(1, shown.undo())
                termios.tcsetattr(0, termios.TCSADRAIN, before)

    code = ask(socket, bridge)
    if code == 0:
        say("detached")
    return code


def _size() -> tuple[int, int]:
    """Columns and rows, within what a terminal can have: one that nobody has told its size says 0."""
    size = os.get_terminal_size(0)
    return min(max(size.columns or 80, 2), MOST), min(max(size.lines or 24, 2), MOST)


async def _bridge(peer: aiohttp.ClientWebSocketResponse, shown: Shown) -> int:
    """Pass keys and pictures on until somebody has had enough; the exit code."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    ended: asyncio.Future[int] = loop.create_future()
    loop.add_reader(0, _take, typed, ended)
    loop.add_signal_handler(signal.SIGWINCH, typed.put_nowait, b"")
    for number in ENDING:
        loop.add_signal_handler(number, _resolve, ended, 128 + number)
    tasks = [asyncio.create_task(_send(peer, typed)), asyncio.create_task(_show(peer, shown))]
    first: list[asyncio.Future[Any]] = [*tasks, ended]
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        # The whole closing handshake, with `_show` still reading: a connection that is torn down with something unread
        # in it fails at the other end, before what was typed last has been taken from it.
        await peer.close()
    finally:
        loop.remove_reader(0)
        for number in (signal.SIGWINCH, *ENDING):
            loop.remove_signal_handler(number)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ended.result() if ended.done() else 0


def _take(typed: "asyncio.Queue[bytes]", ended: "asyncio.Future[int]") -> None:
    try:
        data = os.read(0, 65536)
    except OSError:
        data = b""
    if data:
        typed.put_nowait(data)
    else:  # the terminal has gone
        asyncio.get_running_loop().remove_reader(0)
        _resolve(ended, 128 + signal.SIGHUP)


def _resolve(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


async def _send(peer: aiohttp.ClientWebSocketResponse, typed: "asyncio.Queue[bytes]") -> None:
    while True:
        data = await typed.get()
        if not data:
            columns, rows = _size()
            await peer.send_str(msgspec.json.encode({"columns": columns, "rows": rows}).decode())
        elif DETACH in data:
            await peer.send_bytes(data.partition(DETACH)[0])
            return
        else:
            await peer.send_bytes(data)


async def _show(peer: aiohttp.ClientWebSocketResponse, shown: Shown) -> None:
    async for message in peer:
        if message.type is aiohttp.WSMsgType.BINARY and not write_all(1, shown.feed(message.data)):
            return
