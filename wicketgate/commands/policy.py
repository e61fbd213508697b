"""`wicketgate policy check` and `wicketgate policy explain`: the policy file judged without a broker.

Prints what `broker.policy` decides. Nothing is dialled, resolved or changed.
"""

import json
import time
from pathlib import Path

import click

from broker.policy.decide import Allowed, Facts
from broker.policy.explain import Explanation, explain
from broker.policy.grant_rules import parse_grant_rules
from broker.policy.grants import CallId, Grant, GrantId, uncovered
from broker.policy.load import load_policy
from broker.policy.problems import Mistake, PolicyError, Problem
from broker.policy.requests import parse_request
from broker.policy.rules import Policy, Rule
from wicketgate.commands.policy_text import print_check

_HOUR = 3600.0


@click.group()
def policy() -> None:
    """Check a policy file, or explain what it says to a request."""


@policy.command()
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(file: str, as_json: bool) -> None:
    """Read FILE as the broker would and print every problem at once. Exit status 1 if it would be refused."""
    try:
        found = load_policy(file, advise=True)
    except PolicyError as error:
        print_check(file, None, error.problems, as_json)
        click.get_current_context().exit(1)
    print_check(file, found, found.notes, as_json)


@policy.command("explain")
@click.argument("file", type=click.Path())
@click.argument("method")
@click.argument("url")
@click.option(
    "--grant", "grant_file", type=click.Path(), help="A JSON file with the rules of a grant, to be asked too."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain_command(file: str, method: str, url: str, grant_file: str | None, as_json: bool) -> None:
    """Say what FILE decides on METHOD URL, by which rule and why, and which change would turn it.

    A wss: or ws: URL asks for a WebSocket. METHOD CONNECT asks about the connection alone.
    """
    facts = _parse_request(method, url)
    now = time.time()
    try:
        found = load_policy(file)
        rules = _read_grant(grant_file) if grant_file is not None else None
    except PolicyError as error:
        click.echo(error, err=True)
        click.get_current_context().exit(1)
    grant = None
    if rules is not None:
        grant = Grant(id=GrantId("(file)"), call=CallId("(none)"), rules=rules, issued_at=now, expires_at=now + _HOUR)
    explanation = explain(facts, found, grant, now)
    missing = uncovered(rules, found) if rules is not None else []
    if as_json:
        click.echo(json.dumps(_explanation_document(explanation, found, missing), indent=2))
        return
    click.echo(explanation.sentence)
    click.echo(explanation.turn)
    for part in missing:
        click.echo(f"This grant would not be issued. Not covered by the policy: {part}.")


def _parse_request(method: str, url: str) -> Facts:
    try:
        return parse_request(method, url)
    except Mistake as mistake:
        cure = f"; write {mistake.suggestion}" if mistake.suggestion else ""
        raise click.BadParameter(f"{mistake.found}{cure}", param_hint="URL") from None


def _read_grant(file: str) -> tuple[Rule, ...]:
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        problem = Problem(found=f"cannot be read: {error.strerror}", expected="a JSON file")
        raise PolicyError(file, [problem]) from None
    except (ValueError, RecursionError) as error:
        raise PolicyError(file, [Problem(found=f"not JSON: {error}", expected="a list of rules")]) from None
    rules = document.get("rules") if isinstance(document, dict) else document
    return parse_grant_rules(rules, source=file)


def _explanation_document(explanation: Explanation, found: Policy, missing: list[str]) -> dict[str, object]:
    verdict = explanation.verdict
    allowed = isinstance(verdict, Allowed)
    would = verdict.would if isinstance(verdict, Allowed) else None
    return {
        "verdict": "allow" if allowed else "deny",
        "reason": verdict.reason.value,
        "rule": verdict.rule.name if verdict.rule is not None else None,
        "would": would.reason.value if would is not None else None,
        "policy": found.version,
        "sentence": explanation.sentence,
        "turn": explanation.turn,
        "uncovered": missing,
    }
