"""`wicketgate grant`: issue, list, show and revoke grants of a running broker, over its control socket."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from broker.control.client import Broker, BrokerError, BrokerRefusal
from broker.control.places import NoRuntimeDirectory
from broker.control.schema import Budgets, Grant, GrantState
from wicketgate.speech import say

FAILED = 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

type _Command = Callable[..., Any]


@click.group()
def grant() -> None:
    """Issue, list, show or revoke grants of a running broker."""


def _shared(command: _Command) -> _Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
    where = "The broker's control socket (default: WICKETGATE_CONTROL, else the usual place)."
    return click.option("--socket", type=click.Path(path_type=Path), help=where)(command)


def _asking(command: Callable[..., Awaitable[None]]) -> _Command:
    """Run a command with a client; what the broker refuses becomes one line, or its problem document."""

    @wraps(command)
    def run(*, socket: Path | None, as_json: bool, **options: Any) -> None:
        async def ask() -> None:
            async with Broker(socket) as broker:
                await command(broker, as_json=as_json, **options)

        try:
            asyncio.run(ask())
        except BrokerRefusal as refusal:
            _fail(str(refusal), msgspec.to_builtins(refusal.problem), as_json)
        except (BrokerError, NoRuntimeDirectory) as error:
            _fail(str(error), {"code": "broker_unreachable", "detail": str(error)}, as_json)

    return run


@grant.command()
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="Grant what the policy allows of this host.")
@click.option("--rules", type=click.Path(path_type=Path), help="A JSON file with a list of rules.")
@click.option("--ttl", required=True, metavar="TIME", help="How long it lives: 90s, 15m, 8h, 1d.")
@click.option("--call", metavar="ID", help="The tool call that it is for; stands in each record.")
@click.option("--uses", type=click.IntRange(1), help="Sandboxes that may attach with it.")
@click.option("--requests", type=click.IntRange(1), help="Requests.")
@click.option("--connections", type=click.IntRange(1), help="Connections.")
@click.option("--bytes-up", metavar="SIZE", help="Bytes from the sandbox: 500k, 20m, 1g.")
@click.option("--bytes-down", metavar="SIZE", help="Bytes to the sandbox.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests per second.")
@_shared
@_asking
async def issue(  # noqa: PLR0913
    broker: Broker,
    *,
    allow: tuple[str, ...],
    rules: Path | None,
    ttl: str,
    call: str | None,
    uses: int | None,
    requests: int | None,
    connections: int | None,
    bytes_up: str | None,
    bytes_down: str | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Issue a grant and print its id. The policy must cover all of it."""
    if bool(allow) == (rules is not None):
        raise click.UsageError("Give --allow or --rules.")
    issued = await broker.issue(
        allow=allow or None,
        rules=_rules(rules) if rules is not None else None,
        call=call,
        ttl=_seconds(ttl),
        budgets=Budgets(
            uses=uses,
            requests=requests,
            connections=connections,
            bytes_up=_size(bytes_up, "--bytes-up"),
            bytes_down=_size(bytes_down, "--bytes-down"),
            rate=rate,
        ),
    )
    if as_json:
        _print_json(issued)
    else:
        click.echo(issued.id)


@grant.command("list")
@click.option("--call", metavar="ID", help="Only those of this tool call.")
@click.option("--state", type=click.Choice([state.value for state in GrantState]), help="Only those in this state.")
@_shared
@_asking
async def list_command(broker: Broker, *, call: str | None, state: str | None, as_json: bool) -> None:
    """List grants, oldest first."""
    wanted = GrantState(state) if state is not None else None
    found = [one async for one in broker.grants(call=call, state=wanted)]
    if as_json:
        click.echo(json.dumps({"grants": msgspec.to_builtins(found)}))
        return
    for one in found:
        hosts = ", ".join(dict.fromkeys(host for rule in one.rules for host in rule["hosts"]))
        click.echo(f"{one.id}  {one.state:9}  until {one.expires_at:%Y-%m-%d %H:%M:%SZ}  {one.call or '-'}  {hosts}")


@grant.command()
@click.argument("id")
@_shared
@_asking
async def show(broker: Broker, *, id: str, as_json: bool) -> None:  # noqa: A002
    """Show a grant with its rules and its use."""
    _print(await broker.grant(_checked(id)), as_json)


@grant.command()
@click.argument("id")
@_shared
@_asking
async def revoke(broker: Broker, *, id: str, as_json: bool) -> None:  # noqa: A002
    """Revoke a grant. Its tunnels are cut when this returns."""
    _print(await broker.revoke(_checked(id)), as_json)


def _checked(grant_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", grant_id):
        raise click.UsageError(f"{grant_id!r} is not the id of a grant; `wicketgate grant list` shows them.")
    return grant_id


def _rules(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--rules {str(path)!r}: {error}.") from error
    rules = document.get("rules") if isinstance(document, dict) else document
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise click.UsageError(f"--rules {str(path)!r} is not a list of rules.")
    return rules


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if found is None or not int(found[1]):
        raise click.UsageError(f"--ttl {text!r} is not a time: write 90s, 15m, 8h or 1d.")
    return float(int(found[1]) * _UNITS[found[2] or "s"])


def _size(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,12})([kmg]?)", text.lower())
    if found is None or not int(found[1]):
        raise click.UsageError(f"{option} {text!r} is not a size: write 500k, 20m or 1g.")
    return int(found[1]) * _SIZES[found[2]]


def _print(one: Grant, as_json: bool) -> None:
    if as_json:
        _print_json(one)
        return
    click.echo(f"{one.id}  {one.state}")
    click.echo(f"  call     {one.call or '-'}")
    click.echo(f"  issued   {one.issued_at:%Y-%m-%d %H:%M:%SZ} by {one.issued_by} under policy {one.policy}")
    ended = f", revoked {one.revoked_at:%Y-%m-%d %H:%M:%SZ}" if one.revoked_at else ""
    click.echo(f"  expires  {one.expires_at:%Y-%m-%d %H:%M:%SZ}{ended}")
    for name in ("uses", "requests", "connections", "bytes_up", "bytes_down"):
        bound = getattr(one.budgets, name)
        click.echo(f"  {name:11} {getattr(one.usage, name)}" + (f" of {bound}" if bound is not None else ""))
    for rule in one.rules:
        ports = ",".join(str(port) for port in rule.get("ports", [443]))
        words = [rule["action"], ",".join(rule["hosts"]), ports, ",".join(rule.get("methods", []))]
        click.echo(f"  rule {rule['name']}: {' '.join(word for word in words if word)}")


def _print_json(one: Grant) -> None:
    click.echo(msgspec.json.encode(one).decode())


def _fail(words: str, document: dict[str, Any], as_json: bool) -> None:
    say(words)
    if as_json:
        click.echo(json.dumps({"error": document}))
    click.get_current_context().exit(FAILED)
