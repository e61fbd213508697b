"""How `wicketgate audit replay` shows its groups to people. Text only: no colour, no control characters."""

from collections.abc import Iterator

from broker.audit.escaping import escape
from broker.review.replay import Change, Group, Outcome, Replay

_WIDE = 1000
_ASSUMED = "    (if what the log hides of path and query is unambiguous)"


def replay_lines(found: Replay) -> Iterator[str]:
    """A heading for each kind of change, then its groups."""
    total = sum(group.count for group in found.groups)
    yield f"policy {found.policy}: {total} decision{'s' * (total != 1)}"
    for change in Change:
        groups = [group for group in found.groups if group.change is change]
        if groups:
            yield f"{change.value}: {found.count(change)}"
        for group in groups:
            yield from _group_lines(group)


def _group_lines(group: Group) -> Iterator[str]:
    after = group.why if group.after is None else _outcome(group.after)
    same = group.change is Change.UNCHANGED
    parts = [f"  {group.count:6}", group.where, _outcome(group.before), "" if same else f"→ {after}"]
    yield _visible(" ".join(part for part in (*parts, f"[{', '.join(group.examples)}]") if part))
    if group.assumed:
        yield _ASSUMED


def _outcome(outcome: Outcome) -> str:
    return f"{outcome.reason or outcome.verdict}{f' by {outcome.rule}' if outcome.rule else ''}"


def _visible(text: str) -> str:
    return text if text.isprintable() else escape(text, _WIDE)
