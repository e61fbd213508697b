"""`wicketgate audit`: asks the audit log. Reads only; what it writes is the index, which it can always rebuild."""

import contextlib
import errno
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from broker.audit.chain import Checkpoint
from broker.audit.checking import Report, verify_directory
from broker.audit.directory import open_directory
from broker.audit.errors import AuditError
from broker.audit.export import FORMATS
from broker.audit.following import POLL_SECONDS, Follower
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.location import NoStateDirectory, audit_directory, default_state_dir
from broker.audit.neighbours import show
from broker.audit.questions import Filter, every, parse_moment, search, summarise
from broker.audit.records import Entry
from broker.audit.signing import load_public_keys, parse_public_key
from broker.audit.verifier import Position
from wicketgate.commands.audit_text import entry_line, neighbourhood_lines, report_lines, summary_lines

_VERDICTS = ("allow", "deny", "failure")
_Command = Callable[..., Any]


@click.group("audit")
def audit() -> None:
    """Ask the audit log: what was asked, what was refused, by which rule, in which tool call."""


def _shared_options(command: _Command) -> _Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    where = "State directory (default: /var/lib/wicketgate for root, else the user's)."
    return click.option("--state-dir", type=click.Path(path_type=Path), help=where)(command)


def _filters(command: _Command) -> _Command:
    for names, text in (
        ("--session", "Only this session."),
        ("--call", "Only this tool call."),
        ("--grant", "Only this grant."),
        ("--host", "Only this host and the names below it."),
        ("--reason", "Only this reason code."),
        ("--rule", "Only records decided by this rule."),
        ("--method", "Only this HTTP method."),
        ("--kind", "Only this kind of record (decision, close, policy, …)."),
        ("--text", "Only records with this text in host, path, detail or rule."),
        ("--since", "From this time on: 2026-01-31T12:00:00Z, 2026-01-31, or 15m, 2h, 7d ago."),
        ("--until", "Before this time."),
    ):
        command = click.option(names, default="", help=text)(command)
    return click.option("--verdict", type=click.Choice(_VERDICTS), default=None, help="Only this verdict.")(command)


def _filter(values: dict[str, str | None]) -> Filter:
    now = datetime.now(UTC)
    since, until = values.pop("since", ""), values.pop("until", "")
    return Filter(
        since=parse_moment(since, now) if since else None,
        until=parse_moment(until, now) if until else None,
        **{name: value or "" for name, value in values.items()},
    )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn our errors into one line on standard error and exit code 2."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        click.echo(f"wicketgate audit: the index is damaged ({error}); delete {INDEX_NAME}*, it is rebuilt", err=True)
        sys.exit(2)
    except (AuditError, NoStateDirectory) as error:
        click.echo(f"wicketgate audit: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has seen enough: click ends quietly
            raise
        click.echo(f"wicketgate audit: cannot read the log: {error}", err=True)
        sys.exit(2)


@contextlib.contextmanager
def _directory(state_dir: Path | None) -> Iterator[tuple[int, Path]]:
    """Give the log's directory, as its owner: root asking about a service's log acts as that service's user."""
    path = audit_directory(state_dir or default_state_dir(os.environ, os.geteuid()))
    descriptor = open_directory(path, reading=True)
    try:
        with _acting_as(os.fstat(descriptor)):
            yield descriptor, path
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _acting_as(owner: os.stat_result) -> Iterator[None]:
    """Take the owner's ids for a while, so that what is made there is his and his files lead root nowhere."""
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    before = os.getegid()
    try:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    except OSError as error:
        raise AuditError(f"cannot act as uid {owner.st_uid}, who owns the log: {error.strerror}") from error
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)


@contextlib.contextmanager
def _index(state_dir: Path | None) -> Iterator[AuditIndex]:
    with _directory(state_dir) as (descriptor, path), contextlib.ExitStack() as stack:
        index = stack.enter_context(AuditIndex.open(descriptor, path / INDEX_NAME))
        try:
            index.refresh()
        except sqlite3.OperationalError:  # a full disk, a lock that never ends: do without the file
            index = stack.enter_context(AuditIndex.open(descriptor, None))
            index.refresh()
        yield index


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_json(value: object) -> None:
    click.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


@audit.command("tail")
@_shared_options
@click.option("-n", "--lines", "count", type=click.IntRange(0, 100_000), default=20, help="How many past records.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new records until interrupted.")
def tail_command(state_dir: Path | None, as_json: bool, count: int, follow: bool) -> None:
    """Show the newest records, oldest of them first; with --json one object a line."""
    with _told(), _index(state_dir) as index:
        follower = Follower(index.directory) if follow else None
        index.refresh()
        entries: tuple[Entry, ...] = search(index, Filter(), limit=count).entries if count else ()
        _print_entries(reversed(entries), as_json=as_json)
        if follower is not None:
            shown = {entry.id for entry in entries}
            stop = threading.Event()
            with contextlib.suppress(KeyboardInterrupt):
                for entry in follower.follow(lambda: stop.wait(POLL_SECONDS)):
                    if entry.id not in shown:
                        _print_entries((entry,), as_json=as_json)
                        sys.stdout.flush()


def _print_entries(entries: Iterable[Entry], *, as_json: bool) -> None:
    for entry in entries:
        click.echo(msgspec.json.encode(entry) if as_json else entry_line(entry))


@audit.command("search")
@_shared_options
@_filters
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, help="At most this many records.")
@click.option("--page", default="", help="Go on after the mark that the page before ended with.")
def search_command(state_dir: Path | None, as_json: bool, limit: int, page: str, **values: str | None) -> None:
    """Find records, newest first."""
    with _told(), _index(state_dir) as index:
        found = search(index, _filter(values), limit=limit, page=page)
        if as_json:
            _print_json({"records": found.entries, "next_page": found.next_page or None})
            return
        _print_lines(entry_line(entry) for entry in found.entries)
        if found.next_page:
            known = "more" if len(found.entries) == limit else "the time was up, older records"
            click.echo(f"{known}: --page {found.next_page}", err=True)


@audit.command("show")
@_shared_options
@click.argument("record_id")
def show_command(state_dir: Path | None, as_json: bool, record_id: str) -> None:
    """Show one record, its neighbours in the chain, and whether its links hold (exit code 1 if not)."""
    with _told(), _index(state_dir) as index:
        found = show(index, record_id)
        if as_json:
            _print_json(_plain(found))
        else:
            _print_lines(neighbourhood_lines(found))
        if not found.linked or found.next_linked is False:
            sys.exit(1)


@audit.command("summary")
@_shared_options
@_filters
def summary_command(state_dir: Path | None, as_json: bool, **values: str | None) -> None:
    """Count verdicts and bytes per session and host."""
    with _told(), _index(state_dir) as index:
        rows = summarise(index, _filter(values))
        if as_json:
            _print_json({"rows": rows})
        else:
            _print_lines(summary_lines(rows))


@audit.command("verify")
@_shared_options
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Trust this public key (PEM) only.")
@click.option("--against", type=click.Path(path_type=Path), help="An earlier `verify --json`: its heads must be there.")
@click.option("--strict", is_flag=True, help="Also fail where no signed checkpoint covers a log, or a log is gone.")
def verify_command(
    state_dir: Path | None, as_json: bool, key_file: Path | None, against: Path | None, strict: bool
) -> None:
    """Check every line of every log. Exit code 0: nothing is wrong; 1: something is, and where."""
    with _told():
        given = parse_public_key(_read(key_file)) if key_file else None
        heads = _heads(against) if against else ()
        with _directory(state_dir) as (descriptor, _):
            keys = load_public_keys(descriptor) if given is None else given
            report = verify_directory(descriptor, keys, heads)
    unsigned = _uncovered(report) if strict else []
    ok = report.ok and not unsigned and not (strict and report.absent)
    if as_json:
        _print_json(
            {"ok": ok, "records": report.records, "findings": report.findings, "unsigned": unsigned, **_plain(report)}
        )
    else:
        _print_lines(report_lines(report, unsigned, absent=report.absent if strict else ()))
    sys.exit(0 if ok else 1)


def _uncovered(report: Report) -> list[str]:
    """The finished logs whose end no signature vouches for; the closing line itself is one record behind."""
    return [log.log for log in report.logs if not log.live and log.signed_through < log.head.number]


@audit.command("export")
@_shared_options
@_filters
@click.option("--format", "form", type=click.Choice(sorted(FORMATS)), default="jsonl", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a new file instead of standard output.")
def export_command(state_dir: Path | None, as_json: bool, form: str, output: Path | None, **values: str | None) -> None:
    """Write matching records, oldest first, as JSON Lines, CSV or OCSF events. With --json: JSON Lines."""
    with _told(), _output(output) as write, _index(state_dir) as index:
        for text in FORMATS["jsonl" if as_json and form == "csv" else form](every(index, _filter(values))):
            write(text)


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[Callable[[str], object]]:
    if path is None:
        yield sys.stdout.write
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AuditError(f"cannot make {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        yield file.write


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuditError(f"cannot read {path}: {error.strerror}") from error


def _heads(path: Path) -> list[Position]:
    try:
        logs = json.loads(_read(path))["logs"]
        return [Position(**log["head"]) for log in logs]
    except (ValueError, TypeError, KeyError) as error:
        raise AuditError(f"{path} is not the output of `audit verify --json`") from error


def _plain(value: object) -> Any:
    """Turn the value types into JSON; a checkpoint and an entry look alike there."""
    return msgspec.to_builtins(value, enc_hook=lambda other: other if isinstance(other, Checkpoint) else str(other))
