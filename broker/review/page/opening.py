"""Opens the index for one question, in the thread that asks it, without waiting for whoever else has it.

Where no file can be made (a full disk, a place that is only read) the index is in memory; that is kept for the thread's
next question, since making it reads the whole log.
"""

import contextlib
import math
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.audit.index import AuditIndex

PATIENCE: Final = 2.0  # seconds for a lock; another process may have it for minutes, while it reads a long log


class Opener:
    """The index of one directory (a descriptor) at a path."""

    def __init__(self, directory: int, path: Path | None) -> None:
        self._directory = directory
        self._path = path
        self._kept = threading.local()

    @contextlib.contextmanager
    def opened(self) -> Iterator[AuditIndex]:
        """Open the index. Its `refresh` raises `sqlite3.OperationalError` where another process has it."""
        with contextlib.ExitStack() as stack:
            held = _held(self._path) if self._path is not None else None
            if held is not None:
                stack.callback(held.close)
                yield stack.enter_context(_Held(self._directory, held).used())
                return
            index = stack.enter_context(AuditIndex.open(self._directory, self._path))
            index.database.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")
            if _has_file(index.database):
                self._keep(None, contextlib.ExitStack())
            elif self._kept_database is None:
                self._keep(index.database, stack.pop_all())
            if self._kept_database is not None:
                index = stack.enter_context(_Borrowed(self._directory, self._kept_database).used())
            yield index

    @property
    def _kept_database(self) -> sqlite3.Connection | None:
        return getattr(self._kept, "database", None)

    def _keep(self, database: sqlite3.Connection | None, until: contextlib.ExitStack) -> None:
        before = getattr(self._kept, "until", None)
        if before is not None:
            before.close()
        self._kept.database, self._kept.until = database, until


class _Borrowed(AuditIndex):
    """An index on a connection that is not its own; it only closes the log's files."""

    @contextlib.contextmanager
    def used(self) -> Iterator[AuditIndex]:
        self.database.set_progress_handler(None, 0)
        try:
            yield self
        finally:
            self._close_files()


class _Held(_Borrowed):
    """An index that another process is writing to: it is asked as it is."""

    def refresh(self, until: float = math.inf) -> int:
        """Not now."""
        raise sqlite3.OperationalError("somebody else is at work on it")


def _held(path: Path) -> sqlite3.Connection | None:
    """A connection to an index that somebody else keeps locked; None where there is none, or it can be had."""
    if path.is_symlink() or not path.exists():
        return None
    database = None
    try:
        database = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", timeout=PATIENCE, uri=True, isolation_level=None
        )
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")
    except sqlite3.Error as error:
        if database is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
            return database
    if database is not None:
        database.close()
    return None


def _has_file(database: sqlite3.Connection) -> bool:
    return any(place for _, _, place in database.execute("PRAGMA database_list"))
