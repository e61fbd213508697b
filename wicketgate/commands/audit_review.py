"""`wicketgate audit suggest` and `replay`: from the log to a policy, and from a policy back to the log.

Both change nothing, and print what `broker.review` decides. Standard output is the answer: of `suggest` the text of
rules, with everything else as comments, so that a redirection keeps the reasons.
"""

import sys
import tomllib
from pathlib import Path

import click

from broker.audit.questions import every
from broker.policy.load import load_policy
from broker.policy.problems import PolicyError
from broker.policy.rules import Policy
from broker.review.replay import Change, Replay, replay
from broker.review.rule_text import format_rule
from broker.review.suggest import Suggestion, format_rules, suggest
from wicketgate.commands.audit_asking import (
    filter_of,
    filters,
    index_of,
    print_json,
    print_lines,
    shared_options,
    told,
)
from wicketgate.commands.audit_review_text import replay_lines
from wicketgate.commands.policy_text import print_check


@click.command("suggest")
@shared_options
@filters
@click.option("--policy", "file", type=click.Path(), help="The policy in force: suggest beside its rules.")
def suggest_command(state_dir: Path | None, as_json: bool, file: str | None, **values: str | None) -> None:
    """Suggest the smallest rules that would have allowed what was refused, as TOML; what no rule opens as comments."""
    policy = _load(file, as_json) if file is not None else None
    with told(), index_of(state_dir) as index:
        found = suggest(every(index, filter_of(values)), policy)
    if as_json:
        print_json(_suggestion_document(found))
    else:
        click.echo(format_rules(found), nl=False)


@click.command("replay")
@shared_options
@filters
@click.option("--policy", "file", type=click.Path(), required=True, help="The policy to ask.")
@click.option("--exit-code", "strict", is_flag=True, help="Exit with 1 if something that was allowed would be denied.")
def replay_command(state_dir: Path | None, as_json: bool, file: str, strict: bool, **values: str | None) -> None:
    """Judge past decisions again under a changed policy, and say what it would have changed."""
    policy = _load(file, as_json)
    with told(), index_of(state_dir) as index:
        found = replay(every(index, filter_of(values)), policy)
    if as_json:
        print_json(_replay_document(found))
    else:
        print_lines(replay_lines(found))
    if strict and found.count(Change.NOW_DENIED):
        sys.exit(1)


def _load(file: str, as_json: bool) -> Policy:
    """As the serving user reads it, before anybody else's rights are taken. A refused one ends the command."""
    try:
        return load_policy(file)
    except PolicyError as error:
        print_check(file, None, error.problems, as_json)
        sys.exit(2)


def _suggestion_document(found: Suggestion) -> dict[str, object]:
    rules = [
        {
            "rule": tomllib.loads(format_rule(one.rule))["rule"][0],
            "refusals": one.refusals,
            "examples": one.examples,
            "widened": one.widened,
            "notes": one.notes,
        }
        for one in found.rules
    ]
    return {
        "refusals": found.refusals,
        "hosts_left_out": found.hosts_left_out,
        "rules": rules,
        "apart": found.apart,
        "toml": format_rules(found),
    }


def _replay_document(found: Replay) -> dict[str, object]:
    counts = {change.name.lower(): found.count(change) for change in Change}
    groups = [
        {
            "change": group.change.name.lower(),
            "count": group.count,
            "where": group.where or None,
            "before": group.before,
            "after": group.after,
            "why": group.why or None,
            "assumed": group.assumed,
            "examples": group.examples,
        }
        for group in found.groups
    ]
    return {"policy": found.policy, "counts": counts, "groups": groups}
