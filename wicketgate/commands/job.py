"""`wicketgate job`: background jobs of a running runner."""

import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from wicketgate.commands.runner_access import (
    ask,
    authority_options,
    json_option,
    read_authority,
    read_call,
    show,
    socket_option,
)
from wicketgate.runner import schema
from wicketgate.runner.client import Runner, data_of
from wicketgate.shown import Shown
from wicketgate.speech import say

STILL_RUNNING = 3  # the exit code of `wait` when its time is up


@click.group(name="job")
def job() -> None:
    """Start commands in the background, read them, wait for them, stop them."""


@job.command(context_settings={"allow_interspersed_args": False})
@socket_option
@json_option
@authority_options
@click.option("--name", default="", help="A name for people.")
@click.option("--directory", default="", help="Where to begin, relative to the workspace.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def start(
    socket: Path | None, as_json: bool, name: str, directory: str, command: tuple[str, ...], **options: Any
) -> int:
    """Start COMMAND in the background and print its id."""
    authority, call = read_authority(options), read_call(command, directory)
    started = ask(socket, lambda runner: runner.start_job(call, authority, name=name), as_json=as_json)
    if isinstance(started, int):
        return started
    if as_json:
        return show(started)
    click.echo(started.id)
    return 0


@job.command(name="list")
@socket_option
@json_option
def list_jobs(socket: Path | None, as_json: bool) -> int:
    """List the jobs, oldest first."""
    jobs = ask(socket, lambda runner: runner.jobs(), as_json=as_json)
    if isinstance(jobs, int):
        return jobs
    if as_json:
        return show(schema.JobList(jobs=jobs))
    for one in jobs:
        code = "" if one.code is None else f" ({one.code})"
        words = " ".join(one.argv)
        line = words if len(words) < 60 else f"{words[:59]}…"
        click.echo(f"{one.id}  {one.state + code:<16} {_age(one):>8}  {one.name or line!r}")
    return 0


@job.command()
@socket_option
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Begin at this byte.")
@click.argument("identity", metavar="JOB")
def logs(socket: Path | None, follow: bool, offset: int, identity: str) -> int:
    """Print what JOB wrote; to a terminal only what draws."""

    async def read(runner: Runner) -> int:
        await _print(runner.logs(identity, offset=offset, follow=follow))
        return 0

    return ask(socket, read)


@job.command()
@socket_option
@json_option
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="Wait this many seconds at most.")
@click.argument("identity", metavar="JOB")
def wait(socket: Path | None, as_json: bool, timeout: float | None, identity: str) -> int:
    """Wait until JOB is over; the exit code is the job's own, or 3 while it runs."""

    async def until_over(runner: Runner) -> schema.JobState:
        left = timeout
        while True:
            piece = min(left, 60.0) if left is not None else 60.0
            found = await runner.wait_job(identity, seconds=piece)
            left = None if left is None else left - piece
            if found.state != "running" or (left is not None and left <= 0):
                return found

    return _report(ask(socket, until_over, as_json=as_json), as_json)


@job.command()
@socket_option
@json_option
@click.argument("identity", metavar="JOB")
def stop(socket: Path | None, as_json: bool, identity: str) -> int:
    """End everything that JOB has started."""
    stopped = ask(socket, lambda runner: runner.stop_job(identity), as_json=as_json)
    if isinstance(stopped, int):
        return stopped
    return show(stopped) if as_json else 0


def _report(found: schema.JobState | int, as_json: bool) -> int:
    if isinstance(found, int):
        return found
    if as_json:
        show(found)
    elif found.state != "ended":
        say(f"the job is {found.state.replace('_', ' ')}")
    if found.state == "running":
        return STILL_RUNNING
    return found.code if found.code is not None else 125


async def _print(events: AsyncIterator[schema.LogEvent]) -> None:
    shown = Shown() if os.isatty(1) else None
    try:
        async for event in events:
            if isinstance(event, schema.Output):
                if event.cut_bytes:
                    say(f"{event.cut_bytes} bytes are not kept here")
                data = data_of(event)
                _write(data if shown is None else shown.feed(data))
    finally:
        if shown is not None:
            _write(shown.undo())


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _age(one: schema.JobState) -> str:
    seconds = int(((one.ended_at or datetime.now(UTC)) - one.started_at).total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
