"""The writer's face: records in, one write per turn out, in one unbroken chain.

`append` puts a record into memory and is cheap; `flush` makes everything appended so far durable to the degree that
`SyncPolicy` asks, with one write. What a record permits may happen only after the flush that carries it. A log that
cannot write says so by `AuditUnavailable` and takes up its chain where it stopped once it can.

One thread, one process: a log belongs to the process that opened it, and has its files for itself.
"""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

import msgspec

from broker.audit.chain import GENESIS, Checkpoint, opening_line, seal_all, signed_message
from broker.audit.directory import open_directory
from broker.audit.encoding import encode
from broker.audit.errors import AuditKeyError, AuditUnavailable
from broker.audit.outage import Outage
from broker.audit.records import Event, Kind, Record, record_from
from broker.audit.repair import repair_dead
from broker.audit.segments import Segment, newest_log
from broker.audit.settings import Counts, LogSettings, SyncPolicy
from broker.audit.signing import Signer, load_signer
from broker.audit.writer import FileLost, SegmentWriter

__all__ = ["AuditLog", "Counts", "LogSettings", "SyncPolicy"]

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_BUFFER_BYTES: Final = 256 * 1024  # a caller that forgets to flush holds no more than this
_BACKLOG_BYTES: Final = 1024 * 1024  # what is kept while nothing can be written
_RETRY_SECONDS: Final = 0.2
_encode = msgspec.json.Encoder().encode


class AuditLog:
    """An append-only log in a directory of its own. Make one with `AuditLog.open`."""

    def __init__(self, directory: int, settings: LogSettings) -> None:
        self.counts = Counts()
        self._directory = directory
        self._settings = settings
        self._second, self._stamp = -1, b""
        self._bodies: list[bytes] = []
        self._buffered = 0
        self._number = 0  # of the last record appended
        self._committed = 0  # of the last record written
        self._head = GENESIS
        self._outage: Outage | None = None
        self._signer: Signer | None = None
        self._decided = False
        self._signed_number = 0
        self._signed_at = settings.monotonic()
        self._started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(settings.clock() // 1_000_000_000))
        self._segments = 0
        self._beside = ""
        self._file: SegmentWriter | None = None
        self._rotate_at = settings.max_bytes
        self.name = "".join(secrets.choice(_ALPHABET) for _ in range(12))
        """The log's id: the first part of every record id."""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        sync: SyncPolicy = SyncPolicy.INTERVAL,
        max_bytes: int = 64 * 1024 * 1024,
        settings: LogSettings | None = None,
    ) -> Self:
        """Start a log of this process in `directory` (made with mode 0700 when missing) and write its first line.

        Repairs what dead writers left there. A file is rotated after `max_bytes`. `settings`, when given, holds for
        everything. Raises `AuditDirectoryError` for a directory that cannot be trusted, `AuditUnavailable` for one
        that cannot be written.
        """
        descriptor = open_directory(directory)
        log = cls(descriptor, settings or LogSettings(sync=sync, max_bytes=max_bytes))
        try:
            repair_dead(descriptor, log._now)
            log._beside = newest_log(descriptor)
            log._begin_file()
        except OSError as error:
            os.close(descriptor)
            raise AuditUnavailable(f"the audit log in {directory} cannot be written: {error.strerror}") from error
        return log

    @property
    def available(self) -> bool:
        """False while records cannot be written. Then nothing new may be allowed."""
        return self._outage is None

    @property
    def cause(self) -> str:
        """Why the log is not available, in one sentence; empty when it is."""
        return self._outage.cause if self._outage else ""

    def append(self, record: Record | Mapping[str, object]) -> str:
        """Take a record and return its id. It is written by the next `flush`.

        Raises `AuditUnavailable` while the log cannot be written, for decisions always, for other kinds (which report
        what happened anyway and are kept for later) once the backlog is full.
        """
        if not isinstance(record, Record):
            record = record_from(dict(record))
        if self._outage is not None:
            self._admit(self._outage, record)
        record_id = self._buffer(encode(record))
        if record.verdict is not None:
            self._decided = True
            self.counts.add(record)
        if self._buffered > _BUFFER_BYTES and self._outage is None:
            self.flush()
        return record_id

    def flush(self) -> None:
        """Write what was appended, with one write, and sync it if the policy says so.

        Raises `AuditUnavailable` if any of it could not be written; it is kept, in order, and tried again.
        """
        if self._outage is not None:
            self._retry(self._outage)
        elif self._bodies:
            self._write(sync=self._settings.sync is SyncPolicy.ALWAYS)
            if self._open_file.size >= self._rotate_at:
                self._rotate()

    def sync(self) -> None:
        """Flush, put everything on the disk, and sign a checkpoint when one is due. For the caller's timer.

        Raises `AuditUnavailable`.
        """
        if self._prepare_sync():
            try:
                self._open_file.sync()
                os.fsync(self._directory)
            except OSError as error:
                self._fail(error)

    async def sync_in_thread(self) -> None:
        """Do what `sync` does, and wait for the disk in a thread, so that an event loop serves on meanwhile.

        Raises `AuditUnavailable`.
        """
        if not self._prepare_sync():
            return
        descriptors = (self._open_file.duplicate(), os.dup(self._directory))
        try:
            for descriptor in descriptors:
                await asyncio.to_thread(os.fsync, descriptor)
        except OSError as error:
            self._fail(FileLost(error.errno, error.strerror))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self, *, sign: bool | None = None) -> None:
        """Write the closing checkpoint and finish the file. Closing twice is allowed.

        Unless told, a log in which nothing was decided is signed only if that does not cost the import of the
        cryptography package (25 ms). Raises `AuditUnavailable` if records are lost by it; the files are released in any
        case.
        """
        if self._directory < 0:
            return
        if sign is None:
            sign = self._decided or "cryptography" in sys.modules
        try:
            if self._outage is not None:
                self._outage.retry_at = 0.0
                self._retry(self._outage)
            self._checkpoint(Event.CLOSED, sign=sign, sync=self._settings.sync is not SyncPolicy.NEVER)
            self._open_file.finish()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._directory < 0 else self.cause or "available"
        return f"<AuditLog {self.name}: {state}; {self._committed} written, {len(self._bodies)} buffered>"

    def _buffer(self, body: bytes) -> str:
        self._number = number = self._number + 1
        record_id = f"{self.name}-{number}"
        second, rest = divmod(self._settings.clock(), 1_000_000_000)
        if second != self._second:
            self._begin_second(second)
        # One formatting for all of it: this runs for every record.
        line = b'{"id":"%b","time":"%b.%06dZ",%b' % (record_id.encode(), self._stamp, rest // 1000, body[1:])
        self._bodies.append(line)
        self._buffered += len(body)
        return record_id

    def _unbuffer(self) -> None:
        self._number -= 1
        self._buffered -= len(self._bodies.pop())

    def _write(self, *, sync: bool) -> None:
        data, head = seal_all(self._head, self._bodies)
        file = self._open_file
        try:
            file.write(data)
            if sync:
                self._sync_batch(file, len(data))
        except OSError as error:
            self._fail(error)
        self._head, self._committed = head, self._number
        self._bodies.clear()
        self._buffered = 0

    def _sync_batch(self, file: SegmentWriter, length: int) -> None:
        try:
            file.sync()
        except OSError:
            file.take_back(length)  # it goes into the next file: here it may or may not have reached the disk
            raise

    def _fail(self, error: OSError) -> NoReturn:
        """Stop. A lost file gets its final name, because the chain goes on elsewhere."""
        if isinstance(error, FileLost) and self._file is not None:
            self._file.finish()
            self._file = None
        now = self._settings.monotonic()
        cause = f"the audit log cannot be written: {error.strerror}"
        if self._outage is None:
            self._outage = Outage(cause, since=now, retry_at=0.0)
        self._outage.cause, self._outage.retry_at = cause, now + _RETRY_SECONDS
        raise AuditUnavailable(cause) from error

    def _admit(self, outage: Outage, record: Record) -> None:
        """Let a record in during an outage, or raise `AuditUnavailable`."""
        try:
            self._retry(outage)
        except AuditUnavailable:
            if record.kind is Kind.DECISION:
                outage.refused += 1
                raise
            if self._buffered > _BACKLOG_BYTES:
                outage.dropped += 1
                raise

    def _retry(self, outage: Outage) -> None:
        """Write the backlog and a line that tells of the gap, or raise `AuditUnavailable`."""
        now = self._settings.monotonic()
        if now < outage.retry_at:
            raise AuditUnavailable(outage.cause)
        outage.retry_at = now + _RETRY_SECONDS
        if self._file is None:
            try:
                self._begin_file()
            except OSError as error:
                self._fail(error)
        detail = outage.tell(now, len(self._bodies))
        self._buffer(_encode(Checkpoint(kind=Kind.CHECKPOINT, event=Event.GAP, detail=detail)))
        try:
            self._write(sync=self._settings.sync is SyncPolicy.ALWAYS)
        except AuditUnavailable:
            self._unbuffer()
            raise
        self._outage = None

    @property
    def _open_file(self) -> SegmentWriter:
        if self._file is None:
            raise AuditUnavailable(self.cause or "the audit log is closed")
        return self._file

    def _begin_file(self) -> None:
        self._file = self._begun(self._next_file())

    def _next_file(self) -> SegmentWriter:
        segment = Segment(started=self._started, log=self.name, number=self._segments + 1, is_open=True)
        return SegmentWriter(self._directory, segment)

    def _begun(self, file: SegmentWriter) -> SegmentWriter:
        """Write the first line of a new file: it names the hash and the number that the file goes on from."""
        number = file.segment.number
        beside = self._beside if number == 1 else ""
        line, head = opening_line(self.name, number, self._now(), self._head, self._committed, beside=beside)
        try:
            file.write(line)
            if self._settings.sync is SyncPolicy.ALWAYS:
                file.sync()
                os.fsync(self._directory)  # the name, too, has to survive a power cut
        except OSError:
            file.discard()
            raise
        self._segments, self._head, self._rotate_at = number, head, self._settings.max_bytes
        return file

    def _rotate(self) -> None:
        """Go on in a new file. While there is no room for one, the old one grows on."""
        old = self._open_file
        try:
            new = self._next_file()
        except OSError:
            self._rotate_at = old.size + self._settings.max_bytes // 8
            return
        try:
            self._checkpoint(Event.ROTATED, sign=True, sync=self._settings.sync is not SyncPolicy.NEVER)
        except AuditUnavailable:
            new.discard()
            raise
        old.finish()
        self._file = None
        try:
            self._file = self._begun(new)
        except OSError as error:
            self._fail(error)

    def _release(self) -> None:
        if self._file is not None:
            self._file.release()
            self._file = None
        os.close(self._directory)
        self._directory = -1

    def _prepare_sync(self) -> bool:
        """Write what is to be synced; tell whether the policy wants it on the disk."""
        self.flush()
        if self._is_checkpoint_due():
            self._checkpoint(Event.INTERVAL, sign=True)
        return self._settings.sync is not SyncPolicy.NEVER

    def _is_checkpoint_due(self) -> bool:
        waited = self._settings.monotonic() - self._signed_at
        return waited >= self._settings.checkpoint_seconds and self._committed > self._signed_number

    def _checkpoint(self, event: Event, *, sign: bool, sync: bool = False) -> None:
        """Write a checkpoint at once. It signs the hash before it, so what is buffered goes first."""
        if self._bodies:
            self._write(sync=False)
        record_id = f"{self.name}-{self._number + 1}"
        self._buffer(_encode(self._signed(event, record_id) if sign else self._unsigned(event)))
        try:
            self._write(sync=sync)
        except AuditUnavailable:
            self._unbuffer()
            raise
        if sign:
            self._signed_number, self._signed_at = self._number, self._settings.monotonic()

    def _signed(self, event: Event, record_id: str) -> Checkpoint:
        """A checkpoint without a signature says why: a broken key must not stop the log."""
        try:
            self._signer = self._signer or load_signer(self._directory)
        except AuditKeyError as error:
            return self._unsigned(event, f"unsigned: {error}")
        signature = self._signer.sign(signed_message(record_id, self._head))
        key = self._signer.key_id
        return Checkpoint(kind=Kind.CHECKPOINT, event=event, head=self._head, key=key, signature=signature)

    def _unsigned(self, event: Event, detail: str = "") -> Checkpoint:
        return Checkpoint(kind=Kind.CHECKPOINT, event=event, head=self._head, detail=detail)

    def _now(self) -> str:
        second, rest = divmod(self._settings.clock(), 1_000_000_000)
        if second != self._second:
            self._begin_second(second)
        return f"{self._stamp.decode()}.{rest // 1000:06d}Z"

    def _begin_second(self, second: int) -> None:
        self._second = second
        self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
