"""Records → the smallest set of rules that would have allowed what was refused, and nothing else. Pure."""

from collections.abc import Iterable

from broker.audit.records import Entry
from broker.policy.rules import Policy
from broker.review.suggestion import Apart, Aside, SuggestedRule, Suggestion

__all__ = ["Apart", "Aside", "SuggestedRule", "Suggestion", "format_rules", "suggest"]


def suggest(entries: Iterable[Entry], policy: Policy | None = None) -> Suggestion:
    """Work out rules for what `entries` (in the order of time) show as denied, or as allowed only because it was observed.

    With the policy in force the rules are named apart from its own, loaded with it and judged by it. Memory is bounded,
    whatever the records hold.
    """
    raise NotImplementedError


def format_rules(suggestion: Suggestion) -> str:
    """The suggested rules as `[[rule]]` tables of a policy file, and what stays apart as comments. Ends with a newline."""
    raise NotImplementedError
