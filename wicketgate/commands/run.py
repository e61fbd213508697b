"""`wicketgate run`: read the command line, run, say how it went."""

import json
import os
import re
import sys
from pathlib import Path

import click

from broker.policy.addresses import Address, parse_address
from broker.policy.allows import policy_from_allows
from broker.policy.authority import Authority, parse_authority
from broker.policy.load import load_policy
from broker.policy.problems import PolicyError
from broker.policy.reasons import Refusal
from broker.policy.rules import Policy
from sandbox.spec import Terminal
from wicketgate.output import Stream
from wicketgate.run import Outcome, Request, run

MAX_CERTIFICATES = 4 << 20


@click.command(name="run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--workspace", type=click.Path(path_type=Path), help="Show this directory inside, writable.")
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="Reach this host (default ports: 443 and 80).")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Allow what this policy file allows.")
@click.option("--grant", metavar="ID", help="Run under a grant of a running broker.")
@click.option("--resolve", multiple=True, metavar="HOST:PORT:ADDR", help="Use this address instead of a look-up.")
@click.option("--cacert", multiple=True, type=click.Path(path_type=Path), help="Trust these certificates too (PEM).")
@click.option("--private", multiple=True, metavar="CIDR", help="Let allowed names resolve to these addresses.")
@click.option("--timeout", type=float, metavar="S", help="End everything after this many seconds (exit code 124).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the command's output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(  # noqa: PLR0913  one parameter an option
    workspace: Path | None,
    allow: tuple[str, ...],
    policy_file: Path | None,
    grant: str | None,
    resolve: tuple[str, ...],
    cacert: tuple[Path, ...],
    private: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND in a sandbox that has no network, or one cable to what --allow names."""
    if grant is not None:
        raise click.UsageError("--grant needs a running broker, and none is configured; use --allow or --policy.")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise click.UsageError(f"--timeout {timeout:g} is not a positive number of seconds.")
    request = Request(
        argv=command,
        policy=_policy(allow, policy_file, private),
        workspace=_workspace(workspace),
        fixed=_fixed(resolve),
        certificates=tuple(_certificates(path) for path in cacert),
        timeout=timeout,
        terminal=_terminal(),
        capture=as_json,
    )
    if request.policy is None and (resolve or private):
        raise click.UsageError("--resolve and --private only mean something together with --allow or --policy.")
    outcome = run(request)
    _report(outcome, as_json=as_json)
    return outcome.ending.code


def _policy(allow: tuple[str, ...], file: Path | None, private: tuple[str, ...]) -> Policy | None:
    if allow and file is not None:
        raise click.UsageError("--allow and --policy exclude each other: put the rules into the file.")
    try:
        if file is not None:
            if private:
                raise click.UsageError("--private goes with --allow; in a policy file it is the rule's `addresses`.")
            return load_policy(file)
        return policy_from_allows(allow, private) if allow or private else None
    except PolicyError as error:
        raise click.UsageError(str(error)) from error


def _fixed(resolve: tuple[str, ...]) -> dict[Authority, tuple[Address, ...]]:
    fixed: dict[Authority, tuple[Address, ...]] = {}
    for text in resolve:
        found = re.fullmatch(r"([^:]+:[0-9]+):\[?([0-9A-Fa-f:.]+)\]?", text)
        address = parse_address(found[2]) if found else None
        if found is None or address is None:
            raise click.UsageError(f"--resolve {text!r} is not HOST:PORT:ADDR, for example api.example.com:443:192.0.2.7.")
        try:
            authority = parse_authority(found[1].encode(), default_port=None)
        except Refusal as refusal:
            raise click.UsageError(f"--resolve {text!r}: {refusal.detail}.") from refusal
        fixed[authority] = (*fixed.get(authority, ()), address)
    return fixed


def _workspace(path: Path | None) -> Path | None:
    if path is None:
        return None
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise click.UsageError(f"--workspace {path}: {getattr(error, 'strerror', error)}.") from error
    if not real.is_dir():
        raise click.UsageError(f"--workspace {path} is not a directory.")
    return real


def _certificates(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_CERTIFICATES:
            raise click.UsageError(f"--cacert {path} is larger than {MAX_CERTIFICATES} bytes.")
        content = path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"--cacert {path}: {error.strerror}.") from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise click.UsageError(f"--cacert {path} holds no PEM certificate.")
    return content


def _terminal() -> Terminal:
    environ = os.environ
    return Terminal(
        term=environ.get("TERM", ""),
        color=environ.get("COLORTERM", ""),
        language=environ.get("LC_ALL") or environ.get("LANG", ""),
        timezone=environ.get("TZ", ""),
    )


def _report(outcome: Outcome, *, as_json: bool) -> None:
    finished = outcome.finished
    if as_json:
        print(json.dumps(_document(outcome)))
        return
    if outcome.ending.broker_gone:
        print("wicketgate: the broker has gone; the command was ended, because it had no network any more", file=sys.stderr)
    elif outcome.ending.timed_out:
        print("wicketgate: the time limit is over; everything in the sandbox was ended", file=sys.stderr)
    elif not outcome.ending.started:
        print("wicketgate: the sandbox could not be set up, so the command was not started", file=sys.stderr)
    if finished is not None:
        counts = f"{finished.allowed} allowed, {finished.denied} denied"
        failures = f", {finished.failures} failed" if finished.failures else ""
        print(f"wicketgate: {counts}{failures}; session {outcome.session} in {finished.log}", file=sys.stderr)


def _document(outcome: Outcome) -> dict[str, object]:
    finished = outcome.finished
    document: dict[str, object] = {
        "session": outcome.session,
        "exit_code": outcome.ending.code,
        "started": outcome.ending.started,
        "timed_out": outcome.ending.timed_out,
    }
    if outcome.output is not None:
        document["stdout"] = _text(outcome.output.stdout)
        document["stderr"] = _text(outcome.output.stderr)
    if finished is not None:
        document["network"] = {
            "allowed": finished.allowed,
            "denied": finished.denied,
            "failures": finished.failures,
            "log": finished.log,
        }
    return document


def _text(stream: Stream) -> dict[str, object]:
    return {"text": stream.kept.decode("utf-8", "replace"), "dropped_bytes": stream.dropped}


