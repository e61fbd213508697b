"""Grants on disk: an SQLite database in the state directory, which one broker holds at a time.

It keeps what it is told and decides nothing. Nothing here waits for the disk: a killed process loses no transaction,
and a machine that went down is noticed at the next start by the kernel's boot id (`Store.ended`), so that whoever owns
the grants can end them all. Sandboxes do not outlive their machine anyway.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from broker.policy.grants import Usage

NAME: Final = "grants.sqlite3"
SCHEMA_VERSION: Final = 1
CACHE_KILOBYTES: Final = 512  # of pages that a busy broker comes to hold; the kernel has the file's anyway
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE grants (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    call TEXT NOT NULL,
    rules BLOB NOT NULL,
    budgets BLOB NOT NULL,
    issued_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    revoked_at REAL,
    issued_by TEXT NOT NULL,
    policy TEXT NOT NULL,
    uses INTEGER NOT NULL DEFAULT 0,
    requests INTEGER NOT NULL DEFAULT 0,
    connections INTEGER NOT NULL DEFAULT 0,
    bytes_up INTEGER NOT NULL DEFAULT 0,
    bytes_down INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX grants_by_call ON grants (call, number);
CREATE INDEX grants_by_end ON grants (expires_at);
CREATE TABLE sessions (
    grant_id TEXT NOT NULL REFERENCES grants (id) ON DELETE CASCADE,
    session TEXT NOT NULL,
    PRIMARY KEY (grant_id, session)
) WITHOUT ROWID;
"""
_COLUMNS: Final = (
    "number, id, call, rules, budgets, issued_at, expires_at, revoked_at, issued_by, policy,"
    " uses, requests, connections, bytes_up, bytes_down"
)


class StoreError(Exception):
    """The database cannot be used. The message names the cause and, where there is one, the cure."""


class Ended(Enum):
    """How the last broker on this state directory ended."""

    NEVER_RAN = "never ran"
    CLEANLY = "cleanly"
    KILLED = "killed"
    WITH_THE_MACHINE = "with the machine"


class End(Enum):
    """Whether a grant is over, as far as the clock and its owner say."""

    REVOKED = "revoked"
    EXPIRED = "expired"
    NONE = "none"


_ENDS: Final = {
    End.REVOKED: "revoked_at IS NOT NULL",
    End.EXPIRED: "revoked_at IS NULL AND expires_at <= ?",
    End.NONE: "revoked_at IS NULL AND expires_at > ?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One grant as it is kept. `rules` and `budgets` are JSON; times are seconds since the epoch.

    The counts are what was used at most: see `broker.gateway.metering`.
    """

    number: int = 0
    id: str
    call: str
    rules: bytes
    budgets: bytes
    issued_at: float
    expires_at: float
    revoked_at: float | None = None
    issued_by: str
    policy: str
    uses: int = 0
    requests: int = 0
    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Store:
    """One open database. Methods raise `StoreError`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        fresh = _claim(self._path)
        with self._translated():
            self._database = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
        try:
            with self._translated():
                self._prepare(fresh)
                self.ended = self._begin()
            self._switched_on = self._meta("switch") != "off"
        except StoreError:
            self._database.close()
            raise

    def close(self) -> None:
        """End cleanly: whatever is on record is exact, and on the disk."""
        with self._translated():
            self._set_meta("clean", "1")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.close()

    def add(self, row: Row) -> int:
        """Keep a new grant; its number in order of issue."""
        with self._translated():
            cursor = self._database.execute(
                "INSERT INTO grants (id, call, rules, budgets, issued_at, expires_at, issued_by, policy)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (row.id, row.call, row.rules, row.budgets, row.issued_at, row.expires_at, row.issued_by, row.policy),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def find(self, grant: str) -> Row | None:
        """One grant by id."""
        rows = self._rows("WHERE id = ?", (grant,))
        return rows[0] if rows else None

    def page(self, *, after: int, most: int, now: float, call: str | None = None, end: End | None = None) -> list[Row]:
        """At most `most` grants in order of issue, from the one after number `after`; of one call, or with one end."""
        where: str = "number > ?"
        values: list[object] = [after]
        if call is not None:
            where, values = f"{where} AND call = ?", [*values, call]
        if end is not None:
            where, values = f"{where} AND {_ENDS[end]}", [*values, *([] if end is End.REVOKED else [now])]
        return self._rows(f"WHERE {where} ORDER BY number LIMIT ?", (*values, most))

    def count_open(self, now: float) -> int:
        """How many grants are neither expired nor revoked."""
        with self._translated():
            found = self._database.execute(
                "SELECT count(*) FROM grants WHERE expires_at > ? AND revoked_at IS NULL", (now,)
            ).fetchone()
        return int(found[0])

    def revoke(self, grant: str, now: float) -> bool:
        """Keep that a grant is revoked; whether it was in force until now."""
        with self._translated():
            cursor = self._database.execute(
                "UPDATE grants SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (now, grant)
            )
            return cursor.rowcount == 1

    def revoke_all(self, now: float) -> int:
        """Revoke what is in force; how many.

        The clock may be ahead, as before a machine has asked for the time: what had not ended at the last issue counts.
        """
        with self._translated():
            return self._database.execute(
                "UPDATE grants SET revoked_at = ? WHERE revoked_at IS NULL"
                " AND expires_at > min(?, (SELECT max(issued_at) FROM grants))",
                (now, now),
            ).rowcount

    def count(self, used: Sequence[tuple[str, Usage]]) -> None:
        """Keep the use of some grants, in one transaction."""
        with self._translated(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "UPDATE grants SET uses = ?, requests = ?, connections = ?, bytes_up = ?, bytes_down = ? WHERE id = ?",
                [(one.uses, one.requests, one.connections, one.bytes_up, one.bytes_down, grant) for grant, one in used],
            )

    def sessions(self, grant: str) -> list[str]:
        """The sessions that attached with a grant and have not ended."""
        with self._translated():
            return [
                row[0] for row in self._database.execute("SELECT session FROM sessions WHERE grant_id = ?", (grant,))
            ]

    def admit(self, grant: str, session: str, uses: int) -> None:
        """Keep a session and the use that it cost, together."""
        with self._translated(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("UPDATE grants SET uses = ? WHERE id = ?", (uses, grant))
            self._database.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?)", (grant, session))

    def dismiss(self, grant: str, session: str) -> None:
        """Forget a session that has ended."""
        with self._translated():
            self._database.execute("DELETE FROM sessions WHERE grant_id = ? AND session = ?", (grant, session))

    def dismiss_absent(self, present: Sequence[str]) -> None:
        """Forget every session but these."""
        with self._translated(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("CREATE TEMP TABLE present (session TEXT PRIMARY KEY) WITHOUT ROWID")
            self._database.executemany("INSERT OR IGNORE INTO present VALUES (?)", [(one,) for one in present])
            self._database.execute("DELETE FROM sessions WHERE session NOT IN (SELECT session FROM present)")
            self._database.execute("DROP TABLE present")

    def prune(self, before: float) -> int:
        """Forget grants that expired before then; how many."""
        with self._translated():
            return self._database.execute("DELETE FROM grants WHERE expires_at < ?", (before,)).rowcount

    def discard(self, grant: str) -> None:
        """Forget a grant that was never handed out."""
        with self._translated():
            self._database.execute("DELETE FROM grants WHERE id = ?", (grant,))

    @property
    def switched_on(self) -> bool:
        """The operator's switch; on until somebody turns it off. Off holds at once, also where it cannot be kept."""
        return self._switched_on

    @switched_on.setter
    def switched_on(self, on: bool) -> None:
        self._switched_on = self._switched_on and on
        with self._translated():
            self._set_meta("switch", "on" if on else "off")
        self._switched_on = on

    def _prepare(self, fresh: bool) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # two brokers would each count with a memory of their own
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA foreign_keys = ON")
        execute("PRAGMA trusted_schema = OFF")
        execute(f"PRAGMA cache_size = -{CACHE_KILOBYTES}")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version == 0 and (fresh or not execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]):
            self._database.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            cure = "Use the Wicketgate that wrote it, or move it away: its grants end then."
            raise StoreError(f"{self._path} has the format {version}, and this is for {SCHEMA_VERSION}. {cure}")

    def _begin(self) -> Ended:
        boot = _BOOT_ID.read_text().strip()
        clean, before = self._meta("clean"), self._meta("boot")
        # On the disk before anything is spent: a clean mark that outlives a crash would make its record look exact.
        self._database.execute("PRAGMA synchronous = FULL")
        self._set_meta("clean", "0")
        self._set_meta("boot", boot)
        self._database.execute("PRAGMA synchronous = NORMAL")
        if before is None:
            return Ended.NEVER_RAN
        if clean == "1":
            return Ended.CLEANLY
        return Ended.KILLED if before == boot else Ended.WITH_THE_MACHINE

    def _meta(self, key: str) -> str | None:
        with self._translated():
            found = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def _set_meta(self, key: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _rows(self, where: str, values: tuple[object, ...]) -> list[Row]:
        with self._translated():
            found = self._database.execute(f"SELECT {_COLUMNS} FROM grants {where}", values)  # noqa: S608  both ours
            names = Row.__slots__
            return [Row(**dict(zip(names, row, strict=True))) for row in found]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname in {"SQLITE_BUSY", "SQLITE_LOCKED"}:
                raise StoreError(f"{self._path} is in use by another broker; give each a state directory") from error
            raise StoreError(f"{self._path}: {error}") from error
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error


def _claim(path: Path) -> bool:
    """Make the file, or check that nobody else could have written it; whether it is new."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}") from error
    else:
        return True
    found = path.lstat()
    private = stat.S_ISREG(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if not private or found.st_uid != os.geteuid():
        cure = f"It must be a file of user {os.geteuid()} with mode 0600; move it away, and its grants end."
        raise StoreError(f"{path} could have been written by others. {cure}")
    return False
