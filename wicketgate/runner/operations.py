"""What each operation of the API does, in terms of the sandbox package. One method for each route, of the same name."""

import asyncio
import base64
import codecs
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from broker.api.callers import Caller
from broker.api.faults import ApiError
from broker.api.server import Events
from sandbox.jobs import Job, Jobs
from sandbox.jobs import State as JobOutcome
from sandbox.rights import Command, Rights, to_document
from sandbox.runs import Emit, Result, run_alone
from sandbox.sessions import Session, Sessions
from sandbox.workspace import choose_workspace, create_workspace, list_workspaces
from wicketgate.runner import schema
from wicketgate.runner.faults import Fault
from wicketgate.runner.mode import FullAccess
from wicketgate.runner.openapi import openapi_document
from wicketgate.runner.terminal_operations import TerminalOperations

MAX_RUNS = 256
type Stream = Literal["stdout", "stderr", "log"]


@dataclass(slots=True, kw_only=True)
class Operations(TerminalOperations):
    """The operations of one runner."""

    sessions: Sessions
    jobs: Jobs
    mode: FullAccess
    version: str
    broker: str | None
    started_at: float = field(default_factory=time.time)
    runs: set[asyncio.Task[Any]] = field(default_factory=set)

    # ---- foreground ------------------------------------------------------------------------------------------------

    async def run(self, _caller: Caller, events: Events, request: schema.StartRun) -> None:
        command, rights = self._admit(request.call, request.authority)
        if len(self.runs) >= MAX_RUNS:
            raise ApiError(Fault.TOO_MANY, f"{MAX_RUNS} commands are running; wait for one.")
        task = asyncio.current_task()
        assert task is not None
        self.runs.add(task)
        try:
            await _stream(events, lambda emit: run_alone(self.workshop, command, rights, emit))
        finally:
            self.runs.discard(task)

    # ---- sessions --------------------------------------------------------------------------------------------------

    async def open_session(self, _caller: Caller, request: schema.OpenSession) -> schema.SessionState:
        rights = self.admission.rights(request.authority, full_access=self.mode.is_allowed)
        return _session(await self.sessions.open(rights))

    async def list_sessions(self, _caller: Caller) -> schema.SessionList:
        return schema.SessionList(sessions=[_session(one) for one in self.sessions.everything()])

    async def show_session(self, _caller: Caller, *, identity: str) -> schema.SessionState:
        return _session(self._session(identity))

    async def close_session(self, _caller: Caller, *, identity: str) -> schema.SessionState:
        session = self._session(identity)
        await self.sessions.close(session)
        return _session(session)

    async def run_in_session(
        self, _caller: Caller, events: Events, request: schema.SessionRun, *, identity: str
    ) -> None:
        session = self._session(identity)
        command = self.admission.command(request.call)
        await _stream(events, lambda emit: self.sessions.run(session, command, emit))

    def _session(self, identity: str) -> Session:
        session = self.sessions.show(identity)
        if session is None:
            raise ApiError(Fault.UNKNOWN_ID, f"No session {identity} is open.")
        return session

    # ---- jobs ------------------------------------------------------------------------------------------------------

    async def start_job(self, _caller: Caller, request: schema.StartJob) -> schema.JobState:
        command, rights = self._admit(request.call, request.authority)
        return _job(await self.jobs.start(command, rights, name=request.name))

    async def list_jobs(self, _caller: Caller) -> schema.JobList:
        return schema.JobList(jobs=[_job(job) for job in self.jobs.everything()])

    async def show_job(self, _caller: Caller, *, identity: str) -> schema.JobState:
        return _job(self._job(identity))

    async def read_logs(self, _caller: Caller, events: Events, query: schema.LogsQuery, *, identity: str) -> None:
        job = self._job(identity)  # it may be removed while it is read
        offset = query.offset
        async for piece in self.jobs.logs(identity, offset, follow=query.follow):
            await events.send(_output("log", piece.data, offset=piece.offset, cut_bytes=piece.cut))
            offset = piece.offset + len(piece.data)
        await events.send(schema.LogEnd(state=job.state.value, offset=offset))

    async def wait_job(self, _caller: Caller, query: schema.WaitQuery, *, identity: str) -> schema.JobState:
        job = self._job(identity)
        return _job(await self.jobs.wait(identity, query.timeout) or job)

    async def stop_job(self, _caller: Caller, *, identity: str) -> schema.JobState:
        job = self._job(identity)
        await self.jobs.stop(identity)
        return _job(job)

    async def remove_job(self, _caller: Caller, *, identity: str) -> schema.JobState:
        job = self._job(identity)
        if not self.jobs.remove(identity):
            raise ApiError(Fault.BUSY, "The job is running; stop it first.")
        return _job(job)

    def _job(self, identity: str) -> Job:
        job = self.jobs.show(identity)
        if job is None:
            raise ApiError(Fault.UNKNOWN_ID, f"There is no job {identity}.")
        return job

    # ---- mode, workspaces, the rest --------------------------------------------------------------------------------

    async def show_mode(self, _caller: Caller) -> schema.ModeState:
        return _mode(self.mode)

    async def allow_full_access(self, caller: Caller, request: schema.SwitchMode) -> schema.ModeState:
        self.mode.allow(request.confirm, uid=caller.uid, administrator=caller.administrator, now=time.time())
        return _mode(self.mode)

    async def forbid_full_access(self, _caller: Caller) -> schema.ModeState:
        self.mode.forbid()
        return _mode(self.mode)

    async def check_workspace(self, _caller: Caller, request: schema.WorkspaceAsked) -> schema.WorkspaceState:
        admission = self.admission
        if request.user is None:
            workspace = admission.judge(request.path)
        else:
            workspace = choose_workspace(
                request.path,
                user=request.user,
                state=admission.state,
                forbidden=admission.forbidden,
                uid=os.geteuid(),
            )
        return schema.WorkspaceState(path=str(workspace.path))

    async def create_workspace(self, _caller: Caller, request: schema.NewWorkspace) -> schema.WorkspaceState:
        admission = self.admission
        made = create_workspace(request.name, forbidden=admission.forbidden, uid=os.geteuid())
        if request.user is not None:
            choose_workspace(
                str(made.path),
                user=request.user,
                state=admission.state,
                forbidden=admission.forbidden,
                uid=os.geteuid(),
            )
        return schema.WorkspaceState(path=str(made.path))

    async def list_workspaces(self, _caller: Caller) -> schema.WorkspaceList:
        root = self.admission.forbidden.managed
        names = list_workspaces(forbidden=self.admission.forbidden, uid=os.geteuid())
        return schema.WorkspaceList(root=None if root is None else str(root), names=list(names))

    async def show_health(self, _caller: Caller) -> schema.Health:
        support, lot, problem = self.workshop.ground.support, self.workshop.lot, self.admission.ready.problem()
        return schema.Health(
            version=self.version,
            started_at=_time(self.started_at),
            sessions=len(self.sessions.everything()),
            jobs_running=sum(job.state is JobOutcome.RUNNING for job in self.jobs.everything()),
            terminals=sum(not one.has_ended for one in self.terminals.everything()),
            bounds="none" if support is None else support.version.value,
            refused=None if problem is None else str(problem.code),
            broker=self.broker,
            parked=0 if lot is None else len(lot),
            released=0 if lot is None else lot.served,
        )

    async def show_openapi(self, _caller: Caller) -> dict[str, Any]:
        return openapi_document()

    async def close(self) -> None:
        """End everything, cleanly."""
        for task in self.runs:
            task.cancel()
        await self.jobs.close()
        await self.sessions.close_all()
        await self.terminals.close_all()
        if self.workshop.lot is not None:
            await self.workshop.lot.close()
        if self.workshop.next_bridge is not None:
            self.workshop.next_bridge.close()

    def _admit(self, call: schema.Call, authority: schema.Authority) -> tuple[Command, Rights]:
        return self.admission.command(call), self.admission.rights(authority, full_access=self.mode.is_allowed)


async def _stream(events: Events, work: Callable[[Emit], Awaitable[Result]]) -> None:
    texts = {name: _Texts() for name in ("stdout", "stderr")}

    async def emit(kind: str, data: bytes) -> None:
        if kind == "started":
            await events.send(schema.Started(id=data.decode()))
        elif whole := texts[kind].take(data):
            await events.send(_output("stdout" if kind == "stdout" else "stderr", whole))

    result = await work(emit)
    for kind, rest in texts.items():
        if rest.kept:
            await events.send(_output("stdout" if kind == "stdout" else "stderr", rest.kept))
    await events.send(
        schema.Ended(
            code=result.code,
            timed_out=result.timed_out,
            dropped_bytes=result.dropped,
            set_aside=[f"{finding.path}: {finding.done}" for finding in result.set_aside],
            session_ended=result.session_ended,
        )
    )


@dataclass(slots=True)
class _Texts:
    """Cuts a stream so that no character is cut in two: at most three bytes wait for what comes next."""

    kept: bytes = b""

    def take(self, data: bytes) -> bytes:
        data = self.kept + data
        whole = len(data)
        for back in range(1, min(4, len(data) + 1)):
            byte = data[-back]
            if byte & 0xC0 == 0xC0:  # a first byte of a longer character (RFC 3629 §3)
                length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
                whole = len(data) - back if length > back else len(data)
                break
            if byte < 0x80:
                break
        self.kept = data[whole:]
        return data[:whole]


def _output(stream: Stream, data: bytes, *, offset: int = 0, cut_bytes: int = 0) -> schema.Output:
    try:
        text = codecs.decode(data, "utf-8", "strict")
    except UnicodeDecodeError:
        return schema.Output(stream=stream, base64=base64.b64encode(data).decode(), offset=offset, cut_bytes=cut_bytes)
    return schema.Output(stream=stream, text=text, offset=offset, cut_bytes=cut_bytes)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _session(session: Session) -> schema.SessionState:
    cable = session.live.cable
    return schema.SessionState(
        id=session.id,
        opened_at=_time(session.opened_at),
        rights=schema.Rights(**to_document(session.live.rights)),
        attached=None if cable is None else cable.is_attached,
    )


def _job(job: Job) -> schema.JobState:
    return schema.JobState(
        id=job.id,
        name=job.name,
        argv=list(job.argv),
        state=job.state.value,
        code=job.code,
        started_at=_time(job.started_at),
        ended_at=None if job.ended_at is None else _time(job.ended_at),
        output_bytes=job.output_bytes,
        dropped_bytes=job.dropped_bytes,
        set_aside=job.set_aside,
        rights=schema.Rights(**job.rights),
    )


def _mode(mode: FullAccess) -> schema.ModeState:
    return schema.ModeState(
        full_access=mode.is_allowed,
        allowed_by=None if mode.allowed_by is None else str(mode.allowed_by),
        allowed_at=None if mode.allowed_at is None else _time(mode.allowed_at),
        confirmation=mode.confirmation,
    )
