"""Records and a changed policy → what it would have decided, by the same `decide`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from broker.audit.records import Entry
from broker.policy.rules import Policy


class Change(Enum):
    """What the policy would have changed. The value is a heading for people."""

    NOW_DENIED = "was allowed, would be denied"
    NOW_ALLOWED = "was denied, would be allowed"
    OTHERWISE = "same verdict, another rule or reason"
    UNCHANGED = "unchanged"
    UNTOLD = "cannot be judged again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A verdict (`allow` or `deny`) with its reason code and the name of the rule that caused it, "" for none."""

    verdict: str
    reason: str
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Records of one fate. `count` respects records that stand for many; `examples` are ids of a few records.

    after: `None` where it cannot be judged again; `why` says then why not, in one sentence.
    where: `host:port`, printable; "" where the group is not told by destination.
    assumed: so many of them are judged as if what the log hides (`*`) were unambiguous text.
    """

    change: Change
    before: Outcome
    after: Outcome | None
    count: int
    where: str = ""
    why: str = ""
    assumed: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Groups in the order of `Change`, the largest first. `policy` is the version of the policy that was asked."""

    policy: str
    groups: tuple[Group, ...] = ()

    def count(self, change: Change) -> int:
        """How many decisions had this fate."""
        return sum(group.count for group in self.groups if group.change is change)


def replay(entries: Iterable[Entry], policy: Policy) -> Replay:
    """Judge what `entries` (in the order of time) show again under `policy`. Memory is bounded."""
    raise NotImplementedError
