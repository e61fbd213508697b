"""Background jobs: each a sandbox of its own that belongs to the runner and to no connection.

A job keeps the rights it was started with, in its directory (0700, files 0600): nobody's setting of today changes them.
When the runner ends, its jobs end with it, by the kernel; the next runner finds their records and says `lost`.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from sandbox.joblog import JobLog, Piece, read_pieces
from sandbox.live import GRACE, Live, Workshop, open_live
from sandbox.output import Budget
from sandbox.rights import Command, Rights, stored_limits, stored_network, to_document
from sandbox.room import Room
from sandbox.runs import TIMED_OUT
from sandbox.streams import Streams

DIRECTORY, RECORD = "jobs", "job.json"
UNBOUNDED = 1 << 62  # the log bounds itself
RUNNING_AT_ONCE, KEPT = 256, 1000
FAILED = 125


# What reading something else as a record raises.
_NO_RECORD = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.MsgspecError)
LATEST = 1 << 36  # seconds since the epoch, with room


class State(StrEnum):
    """What became of a job. LOST: it was running when the runner that had it ended."""

    RUNNING = "running"
    ENDED = "ended"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


@dataclass(slots=True, kw_only=True)
class Job:
    """One job as it is recorded. Times: seconds since the epoch. `code`: as for a run. `output_bytes`: all it wrote."""

    id: str
    argv: tuple[str, ...]
    rights: dict[str, Any]
    started_at: float
    state: State = State.RUNNING
    ended_at: float | None = None
    code: int | None = None
    output_bytes: int = 0
    dropped_bytes: int = 0
    set_aside: list[str] = field(default_factory=list)
    name: str = ""


@dataclass(slots=True)
class _Running:
    live: Live
    log: JobLog
    grown: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, at each growth and at the end
    task: asyncio.Task[None] | None = None
    wanted: State = State.ENDED


class Jobs:
    """All jobs of a runner. `clock` gives seconds since the epoch."""

    def __init__(self, workshop: Workshop, clock: Callable[[], float]) -> None:
        self._workshop = workshop
        self._clock = clock
        self._directory = workshop.state / DIRECTORY
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._running: dict[str, _Running] = {}
        self._room = Room(RUNNING_AT_ONCE, "jobs are running", "Stop some, or wait for one.")
        self._jobs = {job.id: job for job in sorted(self._recorded(), key=lambda job: job.started_at)}
        for job in self._jobs.values():
            if job.state is State.RUNNING:
                job.state = State.LOST
                with contextlib.suppress(OSError):  # a full disk: the next runner finds it out anew
                    self._record(job)

    def everything(self) -> list[Job]:
        """All of them, oldest first."""
        return [self._up_to_date(job) for job in self._jobs.values()]

    def show(self, identity: str) -> Job | None:
        """One of them."""
        job = self._jobs.get(identity)
        return None if job is None else self._up_to_date(job)

    async def start(self, command: Command, rights: Rights, *, name: str = "") -> Job:
        """Start one. Raises LaunchError."""
        with self._room.for_one_more(len(self._running)):
            job = await self._start(command, rights, name)
        self._forget_oldest()
        return job

    async def _start(self, command: Command, rights: Rights, name: str) -> Job:
        job = Job(
            id=secrets.token_hex(8),
            name=name,
            argv=command.argv,
            rights=to_document(rights),
            started_at=self._clock(),
        )
        place = self._place(job.id)
        streams = Streams(command.stdin, Budget(UNBOUNDED), merged=True)
        try:
            place.mkdir(mode=0o700)
            self._record(job)
            live = await open_live(self._workshop, command, rights, streams=streams)
        except BaseException:
            streams.abandon()
            shutil.rmtree(place, ignore_errors=True)
            raise
        running = _Running(live, JobLog(place, rights.limits.output_bytes))
        self._jobs[job.id], self._running[job.id] = job, running
        running.task = asyncio.create_task(self._attend(job, running, streams, command))
        return job

    async def stop(self, identity: str) -> Job | None:
        """End everything of a job, and wait until it is over. A job that is over stays what it was."""
        running = self._running.get(identity)
        if running is not None:
            running.wanted = State.STOPPED if running.wanted is State.ENDED else running.wanted
            running.live.stop()
            assert running.task is not None
            await asyncio.shield(running.task)
        return self._jobs.get(identity)

    async def wait(self, identity: str, seconds: float | None) -> Job | None:
        """Wait until a job is over, or the time is up; what it is then."""
        running = self._running.get(identity)
        if running is not None and running.task is not None:
            await asyncio.wait([running.task], timeout=seconds)
        return self.show(identity)

    async def logs(self, identity: str, offset: int, *, follow: bool) -> AsyncIterator[Piece]:
        """The output from `offset` on; with `follow` until the job is over."""
        while True:
            running = self._running.get(identity)
            grown = running.grown if running is not None else None
            for piece in read_pieces(self._place(identity), offset):
                yield piece
                offset = piece.offset + len(piece.data)
            if not follow or running is None or grown is None:
                return
            await grown.wait()

    def remove(self, identity: str) -> bool:
        """Forget a job that is over, with its output; False while it runs."""
        if identity in self._running:
            return False
        shutil.rmtree(self._place(identity), ignore_errors=True)
        self._jobs.pop(identity, None)
        return True

    async def close(self) -> None:
        """Stop all."""
        await asyncio.gather(*(self.stop(identity) for identity in list(self._running)))

    async def _attend(self, job: Job, running: _Running, streams: Streams, command: Command) -> None:
        live = running.live
        feeding = [asyncio.ensure_future(one) for one in streams.begin()]
        pump = streams.out.pump(lambda _chunk: self._keep(running, _chunk), streams.budget)
        try:
            limit = command.limit(live.rights)
            ended, _ = await asyncio.wait([live.child.ended], timeout=limit)
            if not ended:
                running.wanted = State.TIMED_OUT
                live.ask_to_end()
                await asyncio.wait([live.child.ended], timeout=GRACE)
                live.stop()
            code = await asyncio.shield(live.done)
            await asyncio.gather(pump, return_exceptions=True)
        except Exception as error:  # noqa: BLE001  a job whose end cannot be seen to must not seem to run for ever
            running.wanted, code = State.FAILED, FAILED
            job.set_aside = [f"the workspace was not looked after: {error}"]
        finally:
            for task in feeding:
                task.cancel()
            await asyncio.gather(*feeding, return_exceptions=True)
            running.log.close()
        self._finish(job, running, code)

    def _finish(self, job: Job, running: _Running, code: int) -> None:
        job.state = running.wanted
        if job.state is State.ENDED and not running.live.started:
            job.state = State.FAILED
        job.code = TIMED_OUT if job.state is State.TIMED_OUT else code
        job.ended_at = self._clock()
        self._up_to_date(job)
        job.set_aside += [f"{finding.path}: {finding.done}" for finding in running.live.findings]
        del self._running[job.id]
        with contextlib.suppress(OSError):  # a full disk: this runner knows how it ended, the next will say `lost`
            self._record(job)
        running.grown.set()

    async def _keep(self, running: _Running, chunk: bytes) -> None:
        running.log.write(chunk)
        grown, running.grown = running.grown, asyncio.Event()
        grown.set()

    def _up_to_date(self, job: Job) -> Job:
        running = self._running.get(job.id)
        if running is not None:
            job.output_bytes, job.dropped_bytes = running.log.size, running.log.dropped
        return job

    def _forget_oldest(self) -> None:
        over = [job.id for job in self._jobs.values() if job.id not in self._running]
        for identity in over[: max(0, len(over) - KEPT)]:
            self.remove(identity)

    def _place(self, identity: str) -> Path:
        return self._directory / identity

    def _record(self, job: Job) -> None:
        """Replace the record, so that a reader sees the old one or the new one."""
        document = {name: getattr(job, name) for name in Job.__slots__}
        place = self._place(job.id)
        draft = place / f".{RECORD}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps({"version": 1, **document}))  # not `dump`: that leaves cycles to the collector
        draft.replace(place / RECORD)

    def _recorded(self) -> list[Job]:
        found = []
        for place in self._directory.iterdir():
            if not (place / RECORD).exists():
                shutil.rmtree(place, ignore_errors=True)  # a runner was killed before it began this one
                continue
            with contextlib.suppress(*_NO_RECORD):
                found.append(_read(json.loads((place / RECORD).read_text(encoding="utf-8")), place.name))
        return found


def _read(document: dict[str, Any], identity: str) -> Job:
    """A recorded job; what it may says less wherever this version does not understand it.

    Raises one of `_NO_RECORD` for what is none: then it is not listed, and stays where it is.
    """
    if document.pop("version") != 1 or document["id"] != identity:
        raise ValueError("another version, or another job's")
    rights = dict(document["rights"])
    if rights.keys() != to_document(Rights()).keys():
        raise ValueError("other rights")
    rights["network"] = stored_network(rights.get("network")).value
    limits = stored_limits(rights.get("limits"))
    rights["limits"] = {name: getattr(limits, name) for name in limits.__struct_fields__}
    job = msgspec.convert({**document, "rights": rights}, Job)
    if not all(0 <= time < LATEST for time in (job.started_at, job.ended_at or 0)):
        raise ValueError("no time")
    return job
