"""`wicketgate audit`: asks the audit log. Reads only; what it writes is the index, which it can always rebuild."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from broker.audit.chain import Checkpoint
from broker.audit.checking import Report, verify_directory
from broker.audit.errors import AuditError
from broker.audit.export import FORMATS, as_json_lines
from broker.audit.following import POLL_SECONDS, Follower
from broker.audit.neighbours import show
from broker.audit.questions import Filter, every, search, summarise
from broker.audit.records import Entry
from broker.audit.signing import load_public_keys, parse_public_key
from broker.audit.verifier import Position
from wicketgate.commands.audit_asking import (
    directory_of,
    filter_of,
    filters,
    index_of,
    print_json,
    print_lines,
    shared_options,
    told,
)
from wicketgate.commands.audit_review import replay_command, suggest_command
from wicketgate.commands.audit_text import entry_line, neighbourhood_lines, report_lines, summary_lines


@click.group("audit")
def audit() -> None:
    """Ask the audit log: what was asked, what was refused, by which rule, in which tool call."""


audit.add_command(suggest_command)
audit.add_command(replay_command)


@audit.command("tail")
@shared_options
@click.option("-n", "--lines", "count", type=click.IntRange(0, 100_000), default=20, help="How many past records.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new records until interrupted.")
def tail_command(state_dir: Path | None, as_json: bool, count: int, follow: bool) -> None:
    """Show the newest records, oldest of them first; with --json one object a line."""
    with told(), index_of(state_dir) as index:
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
    for line in as_json_lines(entries) if as_json else (f"{entry_line(entry)}\n" for entry in entries):
        click.echo(line, nl=False)


@audit.command("search")
@shared_options
@filters
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, help="At most this many records.")
@click.option("--page", default="", help="Go on after the mark that the page before ended with.")
def search_command(state_dir: Path | None, as_json: bool, limit: int, page: str, **values: str | None) -> None:
    """Find records, newest first."""
    with told(), index_of(state_dir) as index:
        found = search(index, filter_of(values), limit=limit, page=page)
        if as_json:
            print_json({"records": found.entries, "next_page": found.next_page or None})
            return
        print_lines(entry_line(entry) for entry in found.entries)
        if found.next_page:
            known = "more" if len(found.entries) == limit else "the time was up, older records"
            click.echo(f"{known}: --page {found.next_page}", err=True)


@audit.command("show")
@shared_options
@click.argument("record_id")
def show_command(state_dir: Path | None, as_json: bool, record_id: str) -> None:
    """Show one record, its neighbours in the chain, and whether its links hold (exit code 1 if not)."""
    with told(), index_of(state_dir) as index:
        found = show(index, record_id)
        if as_json:
            print_json(_plain(found))
        else:
            print_lines(neighbourhood_lines(found))
        if not found.linked or found.next_linked is False:
            sys.exit(1)


@audit.command("summary")
@shared_options
@filters
def summary_command(state_dir: Path | None, as_json: bool, **values: str | None) -> None:
    """Count verdicts and bytes per session and host."""
    with told(), index_of(state_dir) as index:
        rows = summarise(index, filter_of(values))
        if as_json:
            print_json({"rows": rows})
        else:
            print_lines(summary_lines(rows))


@audit.command("verify")
@shared_options
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Trust this public key (PEM) only.")
@click.option("--against", type=click.Path(path_type=Path), help="An earlier `verify --json`: its heads must be there.")
@click.option("--strict", is_flag=True, help="Also fail where no signed checkpoint covers a log, or a log is gone.")
def verify_command(
    state_dir: Path | None, as_json: bool, key_file: Path | None, against: Path | None, strict: bool
) -> None:
    """Check every line of every log. Exit code 0: nothing is wrong; 1: something is, and where."""
    with told():
        given = parse_public_key(_read(key_file)) if key_file else None
        heads = _heads(against) if against else ()
        with directory_of(state_dir) as (descriptor, _):
            keys = load_public_keys(descriptor) if given is None else given
            report = verify_directory(descriptor, keys, heads)
    unsigned = _uncovered(report) if strict else []
    ok = report.ok and not unsigned and not (strict and report.absent)
    if as_json:
        print_json(
            {"ok": ok, "records": report.records, "findings": report.findings, "unsigned": unsigned, **_plain(report)}
        )
    else:
        print_lines(report_lines(report, unsigned, absent=report.absent if strict else ()))
    sys.exit(0 if ok else 1)


def _uncovered(report: Report) -> list[str]:
    """The finished logs whose end no signature vouches for; the closing line itself is one record behind."""
    return [log.log for log in report.logs if not log.live and log.signed_through < log.head.number]


@audit.command("export")
@shared_options
@filters
@click.option("--format", "form", type=click.Choice(sorted(FORMATS)), default="jsonl", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a new file instead of standard output.")
def export_command(state_dir: Path | None, as_json: bool, form: str, output: Path | None, **values: str | None) -> None:
    """Write matching records, oldest first, as JSON Lines, CSV or OCSF events. With --json: JSON Lines."""
    with told(), _output(output) as write, index_of(state_dir) as index:
        for text in FORMATS["jsonl" if as_json and form == "csv" else form](every(index, filter_of(values))):
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
