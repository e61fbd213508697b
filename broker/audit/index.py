"""An SQLite index over all logs of a directory: questions are answered here, the lines themselves stay in the files.

It can be deleted at any time and is rebuilt from the files; a damaged one, or one of another version, is thrown away.
Each refresh reads only what was appended since. It must never be taken for the truth: verification does not use it.
"""

import contextlib
import errno
import math
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

import msgspec

from broker.audit import sums
from broker.audit.keys import host_key, microseconds, split_authority
from broker.audit.lines import Line, read_lines
from broker.audit.records import Entry, decode_entry
from broker.audit.segments import Segment, list_segments, open_segment

INDEX_NAME: Final = "index.sqlite3"
_VERSION: Final = 6
_OPEN_FILES: Final = 64
_BATCH: Final = 20_000
_CHUNK: Final = 4 * 1024 * 1024
_BULK_BYTES: Final = 32 * 1024 * 1024  # from this much new data on it is cheaper to make the lookup tables afterwards

_TABLES: Final = """
CREATE TABLE files (
    file INTEGER PRIMARY KEY, started TEXT NOT NULL, log TEXT NOT NULL, number INTEGER NOT NULL,
    inode INTEGER NOT NULL, offset INTEGER NOT NULL, lines INTEGER NOT NULL, damaged INTEGER NOT NULL,
    first INTEGER, last INTEGER,
    UNIQUE (log, number)
);
CREATE TABLE records (
    time INTEGER NOT NULL, file INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL, id TEXT NOT NULL,
    kind TEXT NOT NULL, event TEXT NOT NULL, session TEXT NOT NULL, call TEXT NOT NULL, grant_id TEXT NOT NULL,
    plane TEXT NOT NULL, method TEXT NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL, path TEXT NOT NULL,
    verdict TEXT NOT NULL, reason TEXT NOT NULL, rule TEXT NOT NULL, detail TEXT NOT NULL, status INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (time, file, offset)
) WITHOUT ROWID;
"""
_LOOKUPS: Final = {
    "by_id": "(id)",
    "by_session": "(session, time)",
    "by_host": "(host, time)",
    "by_call": "(call, time) WHERE call <> ''",
    "by_grant": "(grant_id, time) WHERE grant_id <> ''",
    "by_refusal": "(verdict, time) WHERE verdict IN ('deny', 'failure')",
    "by_reason": "(reason, time) WHERE verdict IN ('deny', 'failure')",
    "by_refused": "(session, time) WHERE verdict IN ('deny', 'failure')",
    "by_place": "(file, offset)",
}
_INSERT: Final = f"INSERT OR REPLACE INTO records VALUES ({', '.join('?' * 23)})"  # noqa: S608
Row = tuple[
    int, int, int, int, str, str, str, str, str, str, str, str, str, int, str, str, str, str, str, int, int, int, int
]

type Place = tuple[int, int, int]
"""File, offset and length of a line."""


class AuditIndex:
    """The index of one directory. Use as a context manager; `refresh` before asking."""

    def __init__(self, directory: int, database: sqlite3.Connection) -> None:
        self.directory = directory
        self.database = database
        self.behind = False
        """Whether the last `refresh` left something for the next one."""
        self._files: dict[int, int] = {}

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: int, path: Path | None) -> Iterator[Self]:
        """Open the index at `path`, or one in memory for None or where no file can be made."""
        database = _connect(path)
        index = cls(directory, database)
        try:
            yield index
        finally:
            index._close_files()
            database.close()

    def refresh(self, until: float = math.inf) -> int:
        """Take in what was appended to the files since the last time; return the number of new records.

        Several processes may refresh at once: the transaction makes the second see what the first has done. Soon after
        `until`, on the monotonic clock, it ends and keeps what it has; it never ends without a step ahead.
        """
        self.behind = False
        with _transaction(self.database):
            segments = list_segments(self.directory)
            known = {
                (log, number): rest
                for log, number, *rest in self.database.execute("SELECT log, number, file, inode, offset FROM files")
            }
            self._forget(known, {(segment.log, segment.number) for segment in segments}, until)
            states = [
                state for segment in first_of_each(segments) if (state := self._state(segment, known)) is not None
            ]
            bulk = until == math.inf and sum(size - offset for _, _, offset, size in states) > _BULK_BYTES
            if bulk:
                self._drop_lookups()
            added = 0
            for segment, file, offset, _ in states:
                if self.behind:
                    break
                added += self._take_in(segment, file, offset, until)
            if bulk:
                _make_lookups(self.database)
        return added

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Return one line from the log itself, without its newline. Raises `OSError`."""
        descriptor = self._files.get(file)
        if descriptor is None:
            descriptor = self._open_file(file)
        return os.pread(descriptor, length, offset)

    def entries(self, places: Iterable[Place]) -> Iterator[Entry]:
        """Give the records at these places, without those of files that were disposed of meanwhile."""
        for place in places:
            try:
                line = self.read(*place)
            except FileNotFoundError:
                continue
            yield decode_entry(line)

    def beginnings(self) -> list[int]:
        """The times of the first record of each file."""
        first = "SELECT time FROM records WHERE file = files.file ORDER BY offset LIMIT 1"
        rows = self.database.execute(f"SELECT ({first}) FROM files").fetchall()  # noqa: S608
        return [time for (time,) in rows if time is not None]

    def _open_file(self, file: int) -> int:
        row = self.database.execute("SELECT started, log, number FROM files WHERE file = ?", (file,)).fetchone()
        if row is None:
            raise FileNotFoundError(2, "the file is not in the index")
        if len(self._files) >= _OPEN_FILES:
            self._close_files()
        self._files[file] = open_segment(self.directory, Segment(started=row[0], log=row[1], number=row[2]))
        return self._files[file]

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def _forget(self, known: dict[tuple[str, int], list[int]], present: set[tuple[str, int]], until: float) -> None:
        """Drop the records of files that are gone: retention is deleting files."""
        for key in known.keys() - present:
            if self.behind:
                break
            self._drop_file(known.pop(key)[0])
            self.behind = time.monotonic() > until

    def _drop_file(self, file: int) -> None:
        self.database.execute("DELETE FROM records WHERE file = ?", (file,))
        sums.forget(self.database, file)
        self.database.execute("DELETE FROM files WHERE file = ?", (file,))

    def _state(self, segment: Segment, known: dict[tuple[str, int], list[int]]) -> tuple[Segment, int, int, int] | None:
        """Return the segment with its file number, where to go on, and its size; None when there is nothing new."""
        try:
            status = _stat(self.directory, segment)
        except FileNotFoundError:
            return None
        entry = known.get((segment.log, segment.number))
        if entry is not None:
            file, inode, offset = entry
            if inode == status.st_ino and status.st_size >= offset:
                return (segment, file, offset, status.st_size) if status.st_size > offset else None
            self._drop_file(file)  # another file, or one that was cut: read it anew
        cursor = self.database.execute(
            "INSERT INTO files (started, log, number, inode, offset, lines, damaged) VALUES (?, ?, ?, ?, 0, 0, 0)",
            (segment.started, segment.log, segment.number, status.st_ino),
        )
        assert cursor.lastrowid is not None
        return segment, cursor.lastrowid, 0, status.st_size

    def _take_in(self, segment: Segment, file: int, offset: int, until: float) -> int:
        rows: list[Row] = []
        counted = sums.Sums()
        lines = damaged = added = 0
        for line in _whole_lines(self.directory, segment, offset):
            offset, lines = line.end, lines + 1
            try:
                row = _row(decode_entry(line.text), file, line.begin, len(line.text))
            except (msgspec.MsgspecError, ValueError):
                damaged += 1  # the verifier says what is wrong with it
            else:
                rows.append(row)
                counted.add(row[7], row[12], row[0], row[5], row[15], row[22], (row[20], row[21]))
            if len(rows) >= _BATCH:
                added += self._insert(rows)
            if time.monotonic() > until:
                self.behind = True
                break
        added += self._insert(rows)
        counted.store(self.database, file)
        self.database.execute(
            "UPDATE files SET offset = ?, lines = lines + ?, damaged = damaged + ? WHERE file = ?",
            (offset, lines, damaged, file),
        )
        return added

    def _insert(self, rows: list[Row]) -> int:
        count = len(rows)
        self.database.executemany(_INSERT, rows)
        rows.clear()
        return count

    def _drop_lookups(self) -> None:
        for name in _LOOKUPS:
            self.database.execute(f"DROP INDEX IF EXISTS {name}")


def first_of_each(segments: list[Segment]) -> list[Segment]:
    """Leave out a second file of the same log and number: somebody copied it, and the verifier says so."""
    return list({(segment.log, segment.number): segment for segment in reversed(segments)}.values())[::-1]


@lru_cache(maxsize=4096)
def _place(authority: str) -> tuple[str, int]:
    host, port = split_authority(authority)
    return host_key(host.rstrip(".")), port  # as filters are read: a dot at the end names the same (RFC 1034 §3.1)


def _row(entry: Entry, file: int, offset: int, length: int) -> Row:
    host, port = _place(entry.authority or entry.wanted)
    return (
        microseconds(entry.time),
        file,
        offset,
        length,
        entry.id,
        entry.kind,
        entry.event,
        entry.session,
        entry.call,
        entry.grant,
        entry.plane,
        entry.method,
        host,
        port,
        entry.path,
        entry.verdict,
        entry.reason,
        entry.rule,
        entry.detail,
        entry.status,
        entry.bytes_up,
        entry.bytes_down,
        entry.count or 1,
    )


def _whole_lines(directory: int, segment: Segment, offset: int) -> Iterator[Line]:
    """Give each finished line after `offset`. What follows the last newline is still being written, or too long."""
    descriptor = open_segment(directory, segment)
    try:
        yield from (line for line in read_lines(descriptor, offset, chunk=_CHUNK) if line.ended or line.overlong)
    finally:
        os.close(descriptor)


def _stat(directory: int, segment: Segment) -> os.stat_result:
    try:
        return os.stat(segment.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return os.stat(segment.finished.name, dir_fd=directory, follow_symlinks=False)


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        for _ in range(2):
            try:
                _make_file(path)
                return _prepare(sqlite3.connect(path, timeout=30.0, isolation_level=None))
            except (sqlite3.OperationalError, OSError):
                break  # a full disk or a directory that cannot be written: do without a file
            except sqlite3.DatabaseError:
                _remove(path)
    return _prepare(sqlite3.connect(":memory:", isolation_level=None))


def _make_file(path: Path) -> None:
    """See to it that there is a file to write to, by its name alone. Raises `OSError`.

    It must not be opened here: the first descriptor of a file that a process closes takes all its locks with it (POSIX,
    `fcntl`), also those of SQLite in other threads, and then other processes write where these are still reading.
    """
    with contextlib.suppress(FileExistsError):
        os.mknod(path, stat.S_IFREG | 0o600)
    if not stat.S_ISREG(path.lstat().st_mode):
        raise FileExistsError(errno.EEXIST, "something else has the name of the index", str(path))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "the index can only be read", str(path))


def _prepare(database: sqlite3.Connection) -> sqlite3.Connection:
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")  # a lost index is rebuilt
        database.execute("PRAGMA cache_size = -65536")
        database.execute("PRAGMA temp_store = MEMORY")
        # Who is at work on it may have it locked for minutes: what is there already is opened without a lock.
        if _version(database) != _VERSION:
            _make_tables(database)
    except BaseException:
        database.close()
        raise
    return database


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _make_tables(database: sqlite3.Connection) -> None:
    with _transaction(database):
        version = _version(database)
        if version not in {0, _VERSION}:
            raise sqlite3.DatabaseError("an index of another version")
        if version == 0:
            for statement in (_TABLES + sums.TABLE).split(";"):
                database.execute(statement)
            _make_lookups(database)
            database.execute(f"PRAGMA user_version = {_VERSION}")


def _make_lookups(database: sqlite3.Connection) -> None:
    for name, columns in _LOOKUPS.items():
        table, _, rest = columns.partition(")")
        database.execute(f"CREATE INDEX IF NOT EXISTS {name} ON records {table}){rest}")


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
