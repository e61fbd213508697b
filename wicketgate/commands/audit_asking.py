"""What the commands of `wicketgate audit` share: options, filters, the index of the right owner, errors, output."""

import contextlib
import errno
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from broker.audit.directory import open_directory
from broker.audit.errors import AuditError
from broker.audit.escaping import escape_json
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.location import NoStateDirectory, audit_directory, default_state_dir
from broker.audit.ownership import acting_as
from broker.audit.questions import Filter, parse_moment

_VERDICTS = ("allow", "deny", "failure")
type _Command = Callable[..., Any]


def shared_options(command: _Command) -> _Command:
    """Add `--json` and `--state-dir`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    where = "State directory (default: /var/lib/wicketgate for root, else the user's)."
    return click.option("--state-dir", type=click.Path(path_type=Path), help=where)(command)


def filters(command: _Command) -> _Command:
    """Add the options that choose records."""
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


def filter_of(values: dict[str, str | None]) -> Filter:
    """The filter that those options gave. Raises `BadQuestion`."""
    now = datetime.now(UTC)
    since, until = values.pop("since", ""), values.pop("until", "")
    return Filter(
        since=parse_moment(since, now) if since else None,
        until=parse_moment(until, now) if until else None,
        **{name: value or "" for name, value in values.items()},
    )


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn our errors into one line on standard error and exit code 2."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        click.echo(f"wicketgate audit: the index is damaged ({error}); delete {INDEX_NAME}*, it is rebuilt", err=True)
        sys.exit(2)
    except (AuditError, NoStateDirectory) as error:
        click.echo(f"wicketgate audit: {error}", err=True)
        sys.exit(2)
    except msgspec.MsgspecError as error:
        click.echo(f"wicketgate audit: a line of the log cannot be read ({error}); ask `audit verify`", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has seen enough: click ends quietly
            raise
        click.echo(f"wicketgate audit: cannot read the log: {error}", err=True)
        sys.exit(2)


@contextlib.contextmanager
def directory_of(state_dir: Path | None) -> Iterator[tuple[int, Path]]:
    """Give the log's directory, as its owner: root asking about a service's log acts as that service's user."""
    path = audit_directory(state_dir or default_state_dir(os.environ, os.geteuid()))
    descriptor = open_directory(path, reading=True)
    try:
        with acting_as(os.fstat(descriptor)):
            yield descriptor, path
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def index_of(state_dir: Path | None) -> Iterator[AuditIndex]:
    """Give the index, up to date, as the log's owner."""
    with directory_of(state_dir) as (descriptor, path), contextlib.ExitStack() as stack:
        index = stack.enter_context(AuditIndex.open(descriptor, path / INDEX_NAME))
        try:
            index.refresh()
        except sqlite3.OperationalError:  # a full disk, a lock that never ends: do without the file
            index = stack.enter_context(AuditIndex.open(descriptor, None))
            index.refresh()
        yield index


def print_lines(lines: Iterable[str]) -> None:
    """A line each."""
    for line in lines:
        click.echo(line)


def print_json(value: object) -> None:
    """One document."""
    click.echo(escape_json(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)))
