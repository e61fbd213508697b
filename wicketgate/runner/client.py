"""The runner's client: typed, asynchronous, one method for each operation.

    async with Runner("/run/wicketgate/runner.sock") as runner:
        result = await runner.run(Call(bash="make test"), Authority(workspace="/srv/project"))

Every refusal is a `RunnerError` with the API's code. A run that is cancelled, or whose client goes away, is ended.
"""

import base64
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from broker.api.ids import is_id
from wicketgate.runner import schema
from wicketgate.runner.config import usual_socket
from wicketgate.runner.schema import Authority, Call, TerminalCall

MAX_EVENT = 64 << 20
_encode = msgspec.json.Encoder().encode
_decode_run_event = msgspec.json.Decoder(schema.Started | schema.Output | schema.Ended).decode
_decode_log_event = msgspec.json.Decoder(schema.Output | schema.LogEnd).decode
_decode_problem = msgspec.json.Decoder(schema.Problem).decode


class RunnerError(Exception):
    """The runner refused, or cannot be reached (`status` 0, `code` `unreachable`)."""

    def __init__(self, problem: schema.Problem) -> None:
        super().__init__(f"{problem.code}: {problem.detail}")
        self.problem = problem
        self.code = problem.code
        self.status = problem.status
        self.detail = problem.detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that has ended, with all of its output that was kept."""

    session: str
    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    dropped_bytes: int
    set_aside: tuple[str, ...]
    session_ended: bool


def data_of(output: schema.Output) -> bytes:
    """The bytes of an output event."""
    return base64.b64decode(output.base64) if output.base64 is not None else (output.text or "").encode()


class Runner:
    """A connection to a runner. `socket` is its path; the usual place where it is not given."""

    def __init__(self, socket: str | Path | None = None) -> None:
        found = usual_socket(dict(os.environ), os.geteuid()) if socket is None else Path(socket)
        if found is None:
            raise _unreachable("there is no usual place: set XDG_RUNTIME_DIR or WICKETGATE_RUNNER")
        self.socket = found
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(path=str(self.socket), limit=0)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 20
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    # ---- foreground ------------------------------------------------------------------------------------------------

    def stream(self, call: Call, authority: Authority | None = None) -> AsyncIterator[schema.RunEvent]:
        """Run a command in a sandbox of its own; its events. Closing the iterator ends the command."""
        return self._events("/v1/runs", schema.StartRun(call=call, authority=authority or Authority()))

    async def run(
        self,
        call: Call,
        authority: Authority | None = None,
        *,
        on_output: Callable[[schema.Output], None] | None = None,
    ) -> Completed:
        """Run a command in a sandbox of its own, to its end."""
        return await _collect(self.stream(call, authority), on_output)

    # ---- sessions --------------------------------------------------------------------------------------------------

    async def open_session(self, authority: Authority | None = None) -> schema.SessionState:
        """Open a sandbox for several calls."""
        body = schema.OpenSession(authority=authority or Authority())
        return await self._ask("POST", "/v1/sessions", schema.SessionState, body)

    @asynccontextmanager
    async def session(self, authority: Authority | None = None) -> AsyncIterator[schema.SessionState]:
        """An open session that is closed at the end; one that is over by then is no error."""
        opened = await self.open_session(authority)
        try:
            yield opened
        finally:
            try:
                await self.close_session(opened.id)
            except RunnerError as error:
                if error.code != "unknown_id":
                    raise

    async def sessions(self) -> list[schema.SessionState]:
        """The open sessions."""
        return (await self._ask("GET", "/v1/sessions", schema.SessionList)).sessions

    async def show_session(self, session: str) -> schema.SessionState:
        """One session."""
        return await self._ask("GET", _place("/v1/sessions/", session), schema.SessionState)

    async def close_session(self, session: str) -> schema.SessionState:
        """End everything in a session."""
        return await self._ask("DELETE", _place("/v1/sessions/", session), schema.SessionState)

    def stream_in(self, session: str, call: Call) -> AsyncIterator[schema.RunEvent]:
        """Run a command in a session; its events."""
        return self._events(_place("/v1/sessions/", session, "/runs"), schema.SessionRun(call=call))

    async def run_in(
        self, session: str, call: Call, *, on_output: Callable[[schema.Output], None] | None = None
    ) -> Completed:
        """Run a command in a session, to its end."""
        return await _collect(self.stream_in(session, call), on_output)

    # ---- jobs ------------------------------------------------------------------------------------------------------

    async def start_job(self, call: Call, authority: Authority | None = None, *, name: str = "") -> schema.JobState:
        """Start a command in the background."""
        body = schema.StartJob(call=call, authority=authority or Authority(), name=name)
        return await self._ask("POST", "/v1/jobs", schema.JobState, body)

    async def jobs(self) -> list[schema.JobState]:
        """All jobs that are remembered."""
        return (await self._ask("GET", "/v1/jobs", schema.JobList)).jobs

    async def show_job(self, job: str) -> schema.JobState:
        """One job."""
        return await self._ask("GET", _place("/v1/jobs/", job), schema.JobState)

    async def logs(self, job: str, *, offset: int = 0, follow: bool = False) -> AsyncIterator[schema.LogEvent]:
        """What a job wrote from `offset` on; the last event tells where to go on."""
        query = {"offset": str(offset), "follow": "true" if follow else "false"}
        async for line in self._lines("GET", _place("/v1/jobs/", job, "/logs"), query=query):
            yield _decode_log_event(line)

    async def wait_job(self, job: str, *, seconds: float = 60.0) -> schema.JobState:
        """Wait until a job is over, or the time is up."""
        return await self._ask(
            "GET", _place("/v1/jobs/", job, "/wait"), schema.JobState, query={"timeout": repr(seconds)}
        )

    async def stop_job(self, job: str) -> schema.JobState:
        """End everything of a job."""
        return await self._ask("POST", _place("/v1/jobs/", job, "/stop"), schema.JobState)

    async def remove_job(self, job: str) -> schema.JobState:
        """Forget a job that is over."""
        return await self._ask("DELETE", _place("/v1/jobs/", job), schema.JobState)

    # ---- terminals -------------------------------------------------------------------------------------------------

    async def open_terminal(
        self, call: TerminalCall | None = None, authority: Authority | None = None, *, name: str = ""
    ) -> schema.TerminalState:
        """Open a terminal with a shell."""
        body = schema.OpenTerminal(call=call or TerminalCall(), authority=authority or Authority(), name=name)
        return await self._ask("POST", "/v1/terminals", schema.TerminalState, body)

    async def terminals(self) -> list[schema.TerminalState]:
        """The terminals."""
        return (await self._ask("GET", "/v1/terminals", schema.TerminalList)).terminals

    async def show_terminal(self, terminal: str) -> schema.TerminalState:
        """One terminal."""
        return await self._ask("GET", _place("/v1/terminals/", terminal), schema.TerminalState)

    async def send(self, terminal: str, text: str = "", *, keys: tuple[str, ...] = ()) -> schema.TerminalState:
        """Paste text, then press keys by name (`Enter`, `C-c`, `Up`)."""
        body = schema.SendToTerminal(text=text, keys=list(keys))
        return await self._ask("POST", _place("/v1/terminals/", terminal, "/send"), schema.TerminalState, body)

    async def read(self, terminal: str, *, scrollback: bool = False, join: bool = False) -> schema.Screen:
        """What a terminal shows, or all that is kept."""
        query = {"scrollback": str(scrollback).lower(), "join": str(join).lower()}
        return await self._ask("GET", _place("/v1/terminals/", terminal, "/screen"), schema.Screen, query=query)

    async def run_in_terminal(self, terminal: str, command: str, *, seconds: float = 60.0) -> schema.TerminalResult:
        """Have a terminal's shell run a command line, and wait for its end."""
        body = schema.RunInTerminal(command=command, timeout=seconds)
        return await self._ask("POST", _place("/v1/terminals/", terminal, "/run"), schema.TerminalResult, body)

    async def resize(self, terminal: str, columns: int, rows: int) -> schema.TerminalState:
        """Change a terminal's size."""
        body = schema.ResizeTerminal(columns=columns, rows=rows)
        return await self._ask("POST", _place("/v1/terminals/", terminal, "/resize"), schema.TerminalState, body)

    async def close_terminal(self, terminal: str) -> schema.TerminalState:
        """End everything in a terminal."""
        return await self._ask("DELETE", _place("/v1/terminals/", terminal), schema.TerminalState)

    @asynccontextmanager
    async def attach(
        self, terminal: str, *, columns: int, rows: int, term: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A person's end of a terminal: binary frames both ways, a text frame tells a new size."""
        query = {"columns": str(columns), "rows": str(rows), "term": term}
        try:
            peer = await self._open().ws_connect(
                f"http://localhost/v1/terminals/{terminal}/attach", params=query, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError:
            # The refusal's body is only told to a plain request.
            await self._ask("GET", _place("/v1/terminals/", terminal, "/attach"), schema.TerminalState, query=query)
            raise
        except aiohttp.ClientConnectionError as error:
            raise _unreachable(f"{self.socket}: {error}") from error
        try:
            yield peer
        finally:
            await peer.close()

    # ---- the rest --------------------------------------------------------------------------------------------------

    async def health(self) -> schema.Health:
        """Whether the runner serves."""
        return await self._ask("GET", "/v1/health", schema.Health)

    async def mode(self) -> schema.ModeState:
        """Whether full access may be asked for."""
        return await self._ask("GET", "/v1/mode", schema.ModeState)

    async def allow_full_access(self, confirm: str) -> schema.ModeState:
        """Allow full access; `confirm` is what an administrator typed."""
        return await self._ask("PUT", "/v1/mode", schema.ModeState, schema.SwitchMode(confirm=confirm))

    async def forbid_full_access(self) -> schema.ModeState:
        """Switch full access off."""
        return await self._ask("DELETE", "/v1/mode", schema.ModeState)

    async def check_workspace(self, path: str, *, user: str | None = None) -> str:
        """Judge a directory, and remember it for `user`; its canonical path."""
        body = schema.WorkspaceAsked(path=path, user=user)
        return (await self._ask("POST", "/v1/workspaces/check", schema.WorkspaceState, body)).path

    async def create_workspace(self, name: str, *, user: str | None = None) -> str:
        """Make a folder under the managed root, and remember it for `user`; its path."""
        body = schema.NewWorkspace(name=name, user=user)
        return (await self._ask("POST", "/v1/workspaces", schema.WorkspaceState, body)).path

    async def workspaces(self) -> schema.WorkspaceList:
        """The folders under the managed root."""
        return await self._ask("GET", "/v1/workspaces", schema.WorkspaceList)

    async def openapi(self) -> dict[str, Any]:
        """The API as an OpenAPI document."""
        return await self._ask("GET", "/v1/openapi.json", dict[str, Any])

    # ---- plumbing --------------------------------------------------------------------------------------------------

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("use the client as an asynchronous context")
        return self._http

    async def _ask[T](
        self, method: str, path: str, answer: type[T], body: object = None, *, query: dict[str, str] | None = None
    ) -> T:
        async with self._request(method, path, body, query) as response:
            return msgspec.json.decode(await response.read(), type=answer)

    async def _events(self, path: str, body: object) -> AsyncIterator[schema.RunEvent]:
        async for line in self._lines("POST", path, body):
            yield _decode_run_event(line)

    async def _lines(
        self, method: str, path: str, body: object = None, *, query: dict[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        async with self._request(method, path, body, query) as response:
            rest = bytearray()
            async for chunk in response.content.iter_any():
                rest += chunk
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield bytes(line)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: object, query: dict[str, str] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = None if body is None else _encode(body)
        try:
            async with self._open().request(
                method, f"http://localhost{path}", data=data, params=query, headers=headers
            ) as response:
                if response.status >= 400:
                    raise _refused(response.status, await response.read())
                yield response
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise _unreachable(f"{self.socket}: {error}") from error


def _place(above: str, identity: str, rest: str = "") -> str:
    """A path with an id in it. Raises RunnerError for what is none."""
    if is_id(identity):
        return f"{above}{identity}{rest}"
    title, detail = "There is nothing of this id.", f"{identity!r} is no id."
    raise RunnerError(schema.Problem(type="about:blank", title=title, status=404, detail=detail, code="unknown_id"))


async def _collect(
    events: AsyncIterator[schema.RunEvent], on_output: Callable[[schema.Output], None] | None
) -> Completed:
    kept = {"stdout": bytearray(), "stderr": bytearray(), "log": bytearray()}
    session = ""
    ended: schema.Ended | None = None
    async for event in events:  # to the response's end, so that its connection serves the next request
        match event:
            case schema.Started():
                session = event.id
            case schema.Output():
                if on_output is not None:
                    on_output(event)
                kept[event.stream] += data_of(event)
            case schema.Ended():
                ended = event
    if ended is None:
        raise _unreachable("the runner went away before the command's end was known")
    return Completed(
        session=session,
        code=ended.code,
        stdout=bytes(kept["stdout"]),
        stderr=bytes(kept["stderr"]),
        timed_out=ended.timed_out,
        dropped_bytes=ended.dropped_bytes,
        set_aside=tuple(ended.set_aside),
        session_ended=ended.session_ended,
    )


def _refused(status: int, body: bytes) -> RunnerError:
    try:
        return RunnerError(_decode_problem(body))
    except msgspec.MsgspecError:
        return RunnerError(
            schema.Problem(type="about:blank", title="Refused", status=status, detail="no document", code="unknown")
        )


def _unreachable(detail: str) -> RunnerError:
    title = "The runner cannot be reached."
    return RunnerError(schema.Problem(type="about:blank", title=title, status=0, detail=detail, code="unreachable"))


__all__ = ["Authority", "Call", "Completed", "Runner", "RunnerError", "TerminalCall", "data_of"]
