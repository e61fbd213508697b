"""Records and a changed policy → what it would have decided, by the same `decide`. Pure.

A decision is counted once. What a close record adds (the guard refused after all, it became a WebSocket, the address
that was dialled) moves it to where it belongs; a bounded number of decisions is remembered until they close.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from msgspec import structs

from broker.audit.escaping import escape
from broker.audit.records import Entry, Kind, Verdict
from broker.policy.reasons import Reason
from broker.policy.rules import Policy
from broker.review.asked import SWITCHED
from broker.review.fate import GUARDED, Fate, Fates, Told, Untold, is_public
from broker.review.tally import Tallies, Tally

MOST: Final = 500
"""Groups told apart by destination; what comes after them is told without it, and then by its change alone."""
MAX_OPEN: Final = 65_536
"""Decisions that are remembered until they close."""
_TEXT: Final = 128
_VARIOUS: Final = "(various)"
_LATELY: Final = 4096
_DECISION, _CLOSE, _OBSERVED = Kind.DECISION.value, Kind.CLOSE.value, Reason.OBSERVED.value
_ALLOW, _DENY = Verdict.ALLOW.value, Verdict.DENY.value


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
    assumed: they are judged as if what the log hides (`*`) were unambiguous text.
    """

    change: Change
    before: Outcome
    after: Outcome | None
    count: int
    where: str = ""
    why: str = ""
    assumed: bool = False
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
    replaying = _Replaying(policy)
    for entry in entries:
        replaying.take(entry)
    return Replay(policy=policy.version, groups=tuple(replaying.groups()))


class _Before(NamedTuple):
    """What the log says came out, as it says it."""

    verdict: str
    reason: str
    rule: str


class _Key(NamedTuple):
    change: Change
    before: Outcome
    after: Outcome | None
    where: str
    why: str
    assumed: bool


class _Open(NamedTuple):
    """A decision that may still move."""

    tally: Tally
    before: _Before
    detail: str  # of what was only observed


class _Replaying:
    def __init__(self, policy: Policy) -> None:
        self._fates = Fates(policy)
        self._tallies: Tallies[_Key] = Tallies(MOST)
        self._known: dict[tuple[_Before, str, Fate], Tally] = {}
        self._open: dict[str, _Open] = {}

    def take(self, entry: Entry) -> None:
        """Count a decision, or move it to what its close record makes of it."""
        if entry.kind == _DECISION and entry.verdict:
            opened = self._count(entry, _Before(entry.verdict, entry.reason, entry.rule), entry.id)
            if entry.verdict == _ALLOW:
                self._remember(entry.id, opened)
        elif entry.kind == _CLOSE:
            self._close(entry)

    def _close(self, entry: Entry) -> None:
        opened = self._open.pop(entry.ref, None)
        if entry.verdict == _DENY:
            if entry.reason not in GUARDED:
                return  # of something that goes on after the decision: a body, a budget
            if opened is not None:
                opened.tally.leave(1, entry.ref)
            self._count(entry, _Before(entry.verdict, entry.reason, entry.rule), entry.ref or entry.id)
        elif opened is not None and (entry.status == SWITCHED or not is_public(entry.dialled)):
            opened.tally.leave(1, entry.ref)
            was = opened.before
            known = structs.replace(entry, verdict=was.verdict, reason=was.reason, detail=opened.detail, rule=was.rule)
            self._count(known, was, entry.ref)

    def _remember(self, identity: str, opened: _Open) -> None:
        if len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[identity] = opened

    def _count(self, entry: Entry, before: _Before, example: str) -> _Open:
        fate = self._fates.of(entry)
        where = entry.authority or entry.wanted
        tally = self._known.get((before, where, fate))
        if tally is None:
            tally = self._find(before, where, fate)
        tally.add(entry.count or 1, example)
        return _Open(tally, before, entry.detail if entry.reason == _OBSERVED else "")

    def _find(self, before: _Before, where: str, fate: Fate) -> Tally:
        """The tally of such decisions; what was looked for lately is found at once."""
        key = _key(before, where, fate)
        tally = self._tallies.at(key, *_wider(key))
        if len(self._known) >= _LATELY:
            self._known.clear()
        self._known[before, where, fate] = tally
        return tally

    def groups(self) -> Iterable[Group]:
        """In the order of `Change`, the largest first."""
        found = [(key, tally) for key, tally in self._tallies if tally.count]
        for change in Change:
            for key, tally in found:
                if key.change is change:
                    examples = tuple(escape(one, _TEXT) for one in tally.examples)
                    yield Group(**key._asdict(), count=tally.count, examples=examples)


def _key(before: _Before, where: str, fate: Fate) -> _Key:
    """Texts of a record may be anything; what is unchanged is not told by destination."""
    shown = Outcome(
        verdict=before.verdict if before.verdict in Verdict else _VARIOUS,
        reason=escape(before.reason, _TEXT),
        rule=escape(before.rule, _TEXT),
    )
    where = escape(where, _TEXT)
    match fate:
        case Untold(why=why):
            return _Key(Change.UNTOLD, shown, None, where, why, assumed=False)
        case Told():
            after = Outcome(verdict=fate.verdict, reason=fate.reason, rule=fate.rule)
            change = _change(shown, after)
            return _Key(change, shown, after, "" if change is Change.UNCHANGED else where, "", fate.assumed)


def _change(before: Outcome, after: Outcome) -> Change:
    if before.verdict != after.verdict:
        return Change.NOW_ALLOWED if after.verdict == _ALLOW else Change.NOW_DENIED
    # A reason or rule that a doubt leaves open says nothing of a change.
    same = after.reason in {"", before.reason} and after.rule in {"", before.rule}
    return Change.UNCHANGED if same else Change.OTHERWISE


def _wider(key: _Key) -> tuple[_Key, _Key]:
    """Without the destination, and without reasons and rules: of the last there are few."""
    vague = key._replace(where="")
    after = None if key.after is None else _bare(key.after)
    return vague, vague._replace(before=_bare(key.before), after=after)


def _bare(outcome: Outcome) -> Outcome:
    return Outcome(verdict=outcome.verdict, reason=_VARIOUS)
