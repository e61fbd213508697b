"""The policy as a value: its rules with their index, its mode and its limits. Parses no text, gives no verdict."""

import copy
from dataclasses import dataclass, field
from enum import Enum

from broker.policy.addresses import Network
from broker.policy.hosts import HostKind, HostPattern
from broker.policy.limits import Limits
from broker.policy.problems import Problem
from broker.policy.rule import Action, Rule, TlsMode
from broker.policy.rule_index import RuleIndex

__all__ = [
    "Action",
    "HostKind",
    "HostPattern",
    "Limits",
    "Mode",
    "Network",
    "Policy",
    "Rule",
    "RuleIndex",
    "TlsMode",
    "index_rules",
    "with_flag",
]


class Mode(Enum):
    """Whether the policy's verdicts are carried out, or only recorded (the address guard holds in both)."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole policy. `version` is a short digest of its content; `notes` are warnings and normalised spellings.

    The default of every field is the closed one: without a rule and without the flag nothing is allowed.
    """

    version: str
    enabled: bool = False
    mode: Mode = Mode.ENFORCE
    require_grant: bool = False
    rules: tuple[Rule, ...] = ()
    limits: Limits = field(default_factory=Limits)
    notes: tuple[Problem, ...] = field(default=(), compare=False)
    allow: RuleIndex = field(init=False, compare=False, repr=False)
    deny: RuleIndex = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", index_rules(self.rules, Action.ALLOW))
        object.__setattr__(self, "deny", index_rules(self.rules, Action.DENY))


def with_flag(policy: Policy, *, enabled: bool) -> Policy:
    """The same policy with another flag; its index, which may be large, is shared."""
    if policy.enabled is enabled:
        return policy
    changed = copy.copy(policy)
    object.__setattr__(changed, "enabled", enabled)  # frozen for others, and still only ours
    return changed


def index_rules(rules: tuple[Rule, ...], action: Action) -> RuleIndex:
    """Index the rules of one action by host. Of the same pattern, inspect comes before splice, then the order given."""
    chosen = [rule for rule in rules if rule.action is action]
    chosen.sort(key=lambda rule: rule.tls is TlsMode.SPLICE)
    return RuleIndex(((pattern, rule) for rule in chosen for pattern in rule.hosts), action)
