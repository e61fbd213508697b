"""What a suggestion says, as values. Decides nothing."""

from dataclasses import dataclass
from enum import Enum

from broker.policy.rule import Rule


class Aside(Enum):
    """Why something that was refused has no suggested rule. The value is a heading for people."""

    CLOSED = "no rule opens it"
    GRANT = "the policy allows it, the grant does not"
    ALLOWED = "the policy allows it already"
    CHANGE = "a rule of the policy has to be changed"
    UNSEEN = "what was asked is not on record"
    LEFT_OUT = "more than a suggestion holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRule:
    """One rule, as it loads. `refusals` counts what it would have allowed, `examples` are ids of a few such records.

    widened: in which respects it allows more than was seen, one sentence each; empty: nothing but what was seen.
    notes: what a reviewer should know before taking it.
    """

    rule: Rule
    refusals: int
    examples: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What no suggested rule opens: the reason code as logged, how often, at which destination (`host:port`, bounded,
    printable, "" for various), one sentence why, and one what to do instead.
    """

    aside: Aside
    reason: str
    count: int
    where: str = ""
    why: str = ""
    cure: str = ""
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """Rules that load together with the policy they were made for, and what stays apart, the most frequent first.

    refusals: all that were looked at; each is counted in one of `rules` or of `apart`.
    hosts_left_out: hosts for which there was no room (`broker.review.gather.MAX_COUNTED` stands for that many or more).
    """

    rules: tuple[SuggestedRule, ...] = ()
    apart: tuple[Apart, ...] = ()
    refusals: int = 0
    hosts_left_out: int = 0
