"""How a policy file's problems are told, wherever a command reads one."""

import json
from typing import Any

import click

from broker.policy.problems import Problem, Severity
from broker.policy.rules import Policy


def print_check(file: str, found: Policy | None, problems: tuple[Problem, ...], as_json: bool) -> None:
    """Print a policy file's problems and whether it loads (`found`), to standard error where it does not."""
    if as_json:
        document: dict[str, Any] = {"file": file, "ok": found is not None}
        if found is not None:
            document |= {"version": found.version, "enabled": found.enabled, "mode": found.mode.value}
            document["rules"] = [rule.name for rule in found.rules]
        document["problems"] = [problem_document(problem) for problem in problems]
        click.echo(json.dumps(document, indent=2))
        return
    for problem in problems:
        click.echo(problem.format(file), err=found is None)
    if found is None:
        errors = sum(problem.severity is Severity.ERROR for problem in problems)
        click.echo(f"{file}: refused: {errors} error{'s' * (errors != 1)}", err=True)
        return
    flag = "on" if found.enabled else "off"
    count = len(found.rules)
    rules = f"{count} rule{'s' * (count != 1)}"
    click.echo(f"{file}: ok: version {found.version}, {rules}, egress {flag}, mode {found.mode.value}")


def problem_document(problem: Problem) -> dict[str, object]:
    """One problem for a JSON document."""
    return {
        "severity": problem.severity.value,
        "line": problem.line or None,
        "where": problem.where or None,
        "found": problem.found,
        "expected": problem.expected,
        "suggestion": problem.suggestion,
    }
