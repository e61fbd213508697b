"""What the commands that talk to a runner share: finding it, the options of an authority, refusals as messages."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, cast

import click
import msgspec

from wicketgate.runner.client import Authority, Call, Runner, RunnerError
from wicketgate.speech import print_document, say

REFUSED = 125

socket_option = click.option(
    "--socket", type=click.Path(path_type=Path), help="The runner's socket (WICKETGATE_RUNNER, or the usual place)."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def authority_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a session may: whoever types a command line is the authority."""
    for option in (
        click.option("--workspace", metavar="DIR", help="Show this directory inside, writable."),
        click.option("--user", metavar="NAME", help="Show the workspace that this user chose last."),
        click.option("--grant", metavar="ID", help="Attach to the broker under this grant."),
        click.option("--network", is_flag=True, help="Attach to the broker without a grant."),
        click.option("--call-id", metavar="ID", help="The tool call that the broker's log will name."),
        click.option("--limit", type=float, metavar="S", help="End everything after this many seconds."),
        click.option("--full-access", is_flag=True, help="See the machine's files; an administrator must allow it."),
    ):
        command = option(command)
    return command


def read_authority(options: dict[str, Any]) -> Authority:
    """The authority of the options above, which are taken out of `options`."""
    grant, network = options.pop("grant"), options.pop("network")
    profile: Literal["none", "brokered"] = "brokered" if grant or network else "none"
    full_access = options.pop("full_access")
    return convert(
        {
            "workspace": options.pop("workspace"),
            "user": options.pop("user"),
            "network": profile,
            "grant": grant,
            "call": options.pop("call_id"),
            "timeout": options.pop("limit"),
            "mode": "full-access" if full_access else "sandbox",
        },
        Authority,
    )


def read_call(words: tuple[str, ...], directory: str = "") -> Call:
    """A command line as a call."""
    return convert({"argv": list(words), "directory": directory}, Call)


def convert[T](values: dict[str, Any], kind: type[T]) -> T:
    """Judge what was typed by the same types as the API. Raises UsageError."""
    try:
        return msgspec.convert({name: value for name, value in values.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{error}.") from error


def ask[T](socket: Path | None, work: Callable[[Runner], Awaitable[T]], *, as_json: bool = False) -> T | int:
    """Do something with a runner; its result, or the exit code of a refusal, which has been told."""

    async def go() -> T:
        async with Runner(socket) as runner:
            return await work(runner)

    try:
        return asyncio.run(go())
    except RunnerError as error:
        say(error.detail)
        if as_json:
            problem = error.problem
            print_document({"error": {"code": problem.code, "message": problem.detail}, "exit_code": REFUSED})
        return REFUSED


def show(answer: Any) -> int:
    """Print an answer as one document."""
    document = cast("dict[str, object]", msgspec.to_builtins(answer))
    return 0 if print_document(document) else REFUSED
