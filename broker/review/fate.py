"""What one record's question would come to under a changed policy, or why that cannot be said.

A grant narrows the policy, and the log does not hold its rules. What a grant denied stays denied; what it allowed it
goes on allowing, on the same plane; whether it would allow what the policy denied first is not known.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from broker.audit.records import Entry, Plane
from broker.audit.records import Verdict as Logged
from broker.policy.addresses import Address, AddressClass, classify_address, judge_answers, parse_address
from broker.policy.decide import Allowed, Denied, Verdict
from broker.policy.facts import Stage
from broker.policy.reasons import Reason, Refusal
from broker.policy.rule import TlsMode
from broker.policy.rules import Mode, Policy
from broker.review.asked import Asked, read_asked
from broker.review.hidden import HiddenJudge, Judged
from broker.review.refusals import read_refusal

_JUDGED: Final = frozenset(
    {
        Reason.EGRESS_OFF,
        Reason.HOST_NOT_ALLOWED,
        Reason.PORT_NOT_ALLOWED,
        Reason.METHOD_NOT_ALLOWED,
        Reason.PATH_NOT_ALLOWED,
        Reason.QUERY_NOT_ALLOWED,
        Reason.WEBSOCKET_NOT_ALLOWED,
        Reason.PLAIN_HTTP_NOT_ALLOWED,
        Reason.RULE_DENY,
        Reason.GRANT_MISSING,
        Reason.ADDRESS_LITERAL,
        Reason.SPECIAL_NAME,
        Reason.UNKNOWN_PROTOCOL,
        Reason.NOT_TLS,
    }
)
_ENDED: Final = frozenset(
    {Reason.GRANT_EXPIRED, Reason.GRANT_REVOKED, Reason.GRANT_EXHAUSTED, Reason.RATE_LIMITED},
)
GUARDED: Final = frozenset({Reason.ADDRESS_REFUSED, Reason.SELF})
_CACHED: Final = 4096
_ALLOW, _DENY = Logged.ALLOW.value, Logged.DENY.value
_DNS, _CONNECT = Plane.DNS.value, Plane.CONNECT.value
_REASONS: Final = frozenset(reason.value for reason in Reason)
_VERDICTS: Final = frozenset(verdict.value for verdict in Logged)

UNKNOWN: Final = "its verdict or reason is of another version"
BY_NAME: Final = "the name server has no policy"
BY_BUDGET: Final = "a grant's end or budget decided, which no policy changes"
BY_GUARD: Final = "the address guard decided, on what the name resolved to then"
BEFORE_RULES: Final = "refused or failed before any rule was asked"
NOWHERE: Final = "it names no destination that a rule could"
ONLY_COUNTED: Final = "only counted in a flood: its method and path are not on record"
UNSEEN: Final = "no request of the connection is on record, and the policy would judge each"
HIDDEN: Final = "what the log hides of its path or query decides"
GRANT_UNASKED: Final = "the policy would allow it; whether the grant does is not on record"
OTHER_PLANE: Final = "it would be spliced, and a grant is judged on the plane; its rules are not on record"


class Untold(NamedTuple):
    """It cannot be judged again, and why."""

    why: str


class Told(NamedTuple):
    """The verdict (`allow` or `deny`), the reason and rule that both sides of a doubt have in common ("" for none)."""

    verdict: str
    reason: str
    rule: str
    assumed: bool = False


type Fate = Told | Untold


class Fates:
    """Judges records under one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._judge = lru_cache(maxsize=_CACHED)(HiddenJudge(policy).judge)
        # A session's grant is judged apart: here it is as good as there.
        self._granted = self._judge
        if policy.require_grant:
            granted = HiddenJudge(replace(policy, require_grant=False))
            self._granted = lru_cache(maxsize=_CACHED)(granted.judge)

    def of(self, entry: Entry) -> Fate:
        """Judge what a decision record, or the close record of it, was about."""
        if entry.plane == _DNS:
            return Untold(BY_NAME)
        refusal = read_refusal(entry)
        allowed = entry.verdict in {_ALLOW, ""}
        by_grant = refusal is not None and refusal.by_grant
        why = "" if allowed or by_grant else _beside(entry)
        if why and why != BY_GUARD:
            return Untold(why)
        asked = read_asked(entry)
        if asked is None:
            return Untold(NOWHERE)
        found = self._judged(asked, granted=bool(entry.grant))
        if found is None:
            return Untold(HIDDEN)
        judged, told = found
        if told.verdict == _DENY:
            mute = asked.facts.scheme == "tcp" and told.reason == Reason.UNKNOWN_PROTOCOL.value
            return told._replace(reason=entry.reason) if mute else told
        if why:
            return Untold(why)
        if not asked.whole:
            return Untold(ONLY_COUNTED)
        if by_grant and self._policy.mode is Mode.ENFORCE and refusal is not None:
            return Told(_DENY, refusal.reason, "" if allowed else entry.rule)
        return self._unseen(entry, asked, judged, allowed=allowed) or self._reached(entry, judged.against, told)

    def _judged(self, asked: Asked, *, granted: bool) -> tuple[Judged, Told] | None:
        judged = self._granted(asked) if granted else self._judge(asked)
        if not judged.is_told:
            return None
        first, second = judged.favoured, judged.against
        return judged, Told(
            _DENY if isinstance(second, Denied) else _ALLOW,
            second.reason.value if first.reason is second.reason else "",
            _rule(second) if _rule(first) == _rule(second) else "",
            judged.assumed,
        )

    def _unseen(self, entry: Entry, asked: Asked, judged: Judged, *, allowed: bool) -> Untold | None:
        """Why an allow by the policy is not the last word: requests that nobody saw, a grant that nobody asked."""
        verdict = judged.against
        spliced = isinstance(verdict, Allowed) and verdict.rule.tls is TlsMode.SPLICE
        only_opened = asked.facts.stage is Stage.CONNECTION and entry.plane != _CONNECT
        if only_opened and not spliced:
            return Untold(UNSEEN)
        if not entry.grant or self._policy.mode is Mode.OBSERVE:
            return None
        if not allowed:
            return Untold(GRANT_UNASKED)
        return Untold(OTHER_PLANE) if spliced and asked.facts.stage is Stage.REQUEST else None

    def _reached(self, entry: Entry, verdict: Verdict, told: Told) -> Told:
        """Whether an address that was dialled would still be opened by the rule."""
        address = _address(entry.dialled)
        if address is None or isinstance(verdict, Denied):
            return told
        try:
            judge_answers((address,), opened=verdict.addresses)
        except Refusal as refusal:
            return Told(_DENY, refusal.reason.value, verdict.rule.name)
        return told


def is_public(dialled: str) -> bool:
    """Whether an `ip:port` of a record, if there is one, is where every rule may go."""
    address = _address(dialled)
    return address is None or classify_address(address) is AddressClass.PUBLIC


def _beside(entry: Entry) -> str:
    """Why no policy judges a refusal or failure again, "" where one does."""
    reason = entry.reason
    if reason not in _REASONS or entry.verdict not in _VERDICTS:
        return UNKNOWN
    if reason in _ENDED:
        return BY_BUDGET
    if reason in GUARDED:
        return BY_GUARD
    return "" if reason in _JUDGED and entry.verdict == _DENY else BEFORE_RULES


def _rule(verdict: Verdict) -> str:
    return verdict.rule.name if verdict.rule is not None else ""


@lru_cache(maxsize=_CACHED)
def _address(dialled: str) -> Address | None:
    host = dialled.rpartition(":")[0]
    return parse_address(host.removeprefix("[").removesuffix("]"))
