"""What the terminal operations of the API do. One method for each route, of the same name."""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from aiohttp import WSMsgType, web

from broker.api.callers import Caller
from broker.api.faults import ApiError
from sandbox.children import finish
from sandbox.live import Workshop
from sandbox.rights import to_document
from sandbox.terminal_runs import Busy, run_in_terminal
from sandbox.terminal_session import LEAVE_SECONDS, AttachedClient, TerminalSession
from sandbox.terminals import EndedTerminal, Terminals
from wicketgate.runner import schema
from wicketgate.runner.admission import Admission
from wicketgate.runner.faults import Fault
from wicketgate.runner.mode import FullAccess

MAX_TYPED = 1 << 16
HEARTBEAT = 30.0
# terminfo(5): the names that a client's TERM may have.
_TERM = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9+._-]{0,63}")
_decode_size = msgspec.json.Decoder(schema.ResizeTerminal).decode


@dataclass(slots=True, kw_only=True)
class TerminalOperations:
    """The operations on terminals."""

    workshop: Workshop
    admission: Admission
    terminals: Terminals
    mode: FullAccess

    async def open_terminal(self, _caller: Caller, request: schema.OpenTerminal) -> schema.TerminalState:
        rights = self.admission.rights(request.authority, full_access=self.mode.is_allowed)
        call = request.call
        opened = await self.terminals.open(
            rights, (call.columns, call.rows), directory=call.directory, name=request.name
        )
        return _state(opened)

    async def list_terminals(self, _caller: Caller) -> schema.TerminalList:
        return schema.TerminalList(terminals=[_state(one) for one in self.terminals.everything()])

    async def show_terminal(self, _caller: Caller, *, identity: str) -> schema.TerminalState:
        terminal = self._terminal(identity)
        if isinstance(terminal, TerminalSession) and not terminal.has_ended:
            await terminal.look()
        return _state(terminal)

    async def send_to_terminal(
        self, _caller: Caller, request: schema.SendToTerminal, *, identity: str
    ) -> schema.TerminalState:
        terminal = self._open_one(identity)
        await terminal.send(request.text, tuple(request.keys))
        return _state(terminal)

    async def read_terminal(self, _caller: Caller, query: schema.ScreenQuery, *, identity: str) -> schema.Screen:
        terminal = self._open_one(identity)
        state = await terminal.look()
        lines = await terminal.read(scrollback=query.scrollback, join=query.join)
        return schema.Screen(
            lines=lines,
            columns=state.columns,
            rows=state.rows,
            cursor_column=state.cursor_column,
            cursor_row=state.cursor_row,
            history=state.history,
        )

    async def run_in_terminal(
        self, _caller: Caller, request: schema.RunInTerminal, *, identity: str
    ) -> schema.TerminalResult:
        try:
            done = await run_in_terminal(self._open_one(identity), request.command, request.timeout)
        except Busy as error:
            raise ApiError(Fault.BUSY, f"The terminal cannot take a command now: {error}.") from error
        return schema.TerminalResult(
            code=done.code,
            output=done.output,
            timed_out=done.timed_out,
            dropped_bytes=done.dropped,
            shell_replaced=done.shell_replaced,
        )

    async def resize_terminal(
        self, _caller: Caller, request: schema.ResizeTerminal, *, identity: str
    ) -> schema.TerminalState:
        terminal = self._open_one(identity)
        await terminal.resize(request.columns, request.rows)
        return _state(terminal)

    async def close_terminal(self, _caller: Caller, *, identity: str) -> schema.TerminalState:
        terminal = self._terminal(identity)
        if isinstance(terminal, TerminalSession):
            await self.terminals.close(terminal)
        return _state(terminal)

    async def attach_terminal(
        self, _caller: Caller, request: web.BaseRequest, query: schema.AttachQuery, *, identity: str
    ) -> web.StreamResponse:
        terminal = self._open_one(identity)
        if not _TERM.fullmatch(query.term):
            raise ApiError(Fault.INVALID_FIELD, "TERM is no name of a terminal.", field="term")
        peer = web.WebSocketResponse(heartbeat=HEARTBEAT, max_msg_size=MAX_TYPED)
        if not peer.can_prepare(request).ok:
            raise ApiError(Fault.BAD_REQUEST, "Ask for a WebSocket (RFC 6455).")
        client = await terminal.attach(query.columns, query.rows, query.term)
        try:
            await peer.prepare(request)
            await _bridge(peer, client)
        finally:
            await finish(client.close())
        return peer

    def _terminal(self, identity: str) -> TerminalSession | EndedTerminal:
        terminal = self.terminals.show(identity)
        if terminal is None:
            raise ApiError(Fault.UNKNOWN_ID, f"There is no terminal {identity}.")
        return terminal

    def _open_one(self, identity: str) -> TerminalSession:
        terminal = self._terminal(identity)
        if isinstance(terminal, EndedTerminal) or terminal.has_ended:
            raise ApiError(Fault.SESSION_OVER, "The terminal has ended.")
        return terminal


async def _bridge(peer: web.WebSocketResponse, client: AttachedClient) -> None:
    """Pass bytes both ways until the person or the client has gone."""
    shown = asyncio.create_task(_show(peer, client))
    typed = asyncio.create_task(_type(peer, client))
    try:
        await asyncio.wait([shown, typed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await finish(_end(client, shown, typed))
    with contextlib.suppress(ConnectionError):
        await peer.close()


async def _end(client: AttachedClient, shown: asyncio.Task[None], typed: asyncio.Task[None]) -> None:
    """What has come in is typed, also when nothing can be shown any more."""
    if not client.child.ended.done():
        await asyncio.wait([typed], timeout=LEAVE_SECONDS)
    for task in (shown, typed):
        task.cancel()
    await asyncio.gather(shown, typed, return_exceptions=True)


async def _show(peer: web.WebSocketResponse, client: AttachedClient) -> None:
    while data := await client.show():
        await peer.send_bytes(data)


async def _type(peer: web.WebSocketResponse, client: AttachedClient) -> None:
    async for message in peer:
        if message.type is WSMsgType.BINARY:
            await client.type(message.data)
        elif message.type is WSMsgType.TEXT:
            try:
                size = _decode_size(message.data)
            except msgspec.MsgspecError:
                return  # it breaks the protocol
            client.resize(size.columns, size.rows)


def _state(terminal: TerminalSession | EndedTerminal) -> schema.TerminalState:
    state = terminal.state
    return schema.TerminalState(
        id=terminal.id,
        name=terminal.name,
        state="ended" if terminal.has_ended else "open",
        columns=state.columns if state is not None else 0,
        rows=state.rows if state is not None else 0,
        opened_at=datetime.fromtimestamp(terminal.opened_at, UTC),
        attached_clients=state.attached if state is not None else 0,
        rights=schema.Rights(**to_document(terminal.rights)),
    )
