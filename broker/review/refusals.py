"""Which records show a refusal, and what becomes of each: gathered for a rule, or set aside with the reason."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.audit.escaping import escape
from broker.audit.records import Entry, Kind, Plane, Verdict
from broker.policy.addresses import AddressClass, Opening, classify_address, parse_address
from broker.policy.decide import OBSERVER
from broker.policy.facts import Stage
from broker.policy.reasons import Reason
from broker.review import closed
from broker.review.aside import Asides, Words
from broker.review.asked import SWITCHED, Asked, read_asked
from broker.review.gather import Gathered
from broker.review.suggestion import Aside
from broker.review.tally import Tally
from broker.review.targets import path_pattern

_KINDS: Final = frozenset({Kind.DECISION.value, Kind.CLOSE.value})
_WOULD: Final = re.compile(r"would be denied: ([a-z_]{1,40}): (.*)", re.DOTALL)
# `broker.policy.wording`: whose rule said no stands before anything that the sandbox chose.
_BY_GRANT: Final = re.compile(r"(?:no rule of|rule \S+ of) grant |grant \S+ (?:denies|allows) ")
_UNCLEAR: Final = re.compile(r"rule \S+ of \S+(?: \S+)? cannot judge this (path|query)\b")
_ADDRESS: Final = re.compile(r"(\S{1,64}) is ")
_ALLOW, _DENY, _OBSERVED = Verdict.ALLOW.value, Verdict.DENY.value, Reason.OBSERVED.value
_ID: Final = 64
_REJECTED: Final = Reason.CLIENT_REJECTED_CA.value


class Refusal(NamedTuple):
    """Why a record counts: the code and phrase of the denial, carried out or only observed."""

    reason: str
    detail: str
    by_grant: bool


def read_refusal(entry: Entry) -> Refusal | None:
    """What was refused by a record, or would have been; `None` for all others."""
    reason, detail = entry.reason, entry.detail
    if entry.kind not in _KINDS:
        return None
    if entry.verdict == _ALLOW:
        would = _WOULD.match(detail) if reason == _OBSERVED else None
        if would is None:
            return None
        reason, detail = would[1], would[2]
    elif entry.verdict != _DENY and reason != _REJECTED:
        return None
    return Refusal(reason, detail, bool(entry.grant) and _BY_GRANT.match(detail) is not None)


class Refusals:
    """All that was read. `count` is of refusals: a record that stands for many counts for all."""

    def __init__(self) -> None:
        self.gathered = Gathered()
        self.asides = Asides()
        self.count = 0

    def read(self, entries: Iterable[Entry]) -> None:
        """Take records, in the order of time."""
        for entry in entries:
            refusal = read_refusal(entry)
            if refusal is not None:
                self._take(entry, refusal)
            elif entry.status == SWITCHED and entry.kind == Kind.CLOSE.value and (asked := read_asked(entry)):
                self.gathered.became_websocket(asked)

    def _take(self, entry: Entry, refusal: Refusal) -> None:
        count = entry.count or 1
        self.count += count
        tally = Tally(count, (escape(entry.id, _ID),), refusal.reason)
        asked = read_asked(entry)
        apart = self._closed(entry, refusal, asked) or (asked and self._opened(entry, refusal, asked, tally))
        if apart:
            aside, words = apart
            where = "" if aside is Aside.LEFT_OUT else entry.authority or entry.wanted
            self.asides.add(aside, refusal.reason, where, words, tally)

    def _closed(self, entry: Entry, refusal: Refusal, asked: Asked | None) -> tuple[Aside, Words] | None:
        """What no rule opens, by its reason code alone."""
        reason = refusal.reason
        if refusal.by_grant:
            return Aside.GRANT, closed.NARROW_GRANT
        if reason == Reason.RULE_DENY.value:
            return Aside.CHANGE, closed.CLOSED[Reason.RULE_DENY]
        if reason not in closed.OPENED:
            return Aside.CLOSED, closed.CLOSED.get(
                Reason(reason), closed.UNKNOWN
            ) if reason in Reason else closed.UNKNOWN
        if asked is None:
            return Aside.UNSEEN, closed.NOWHERE
        if asked.facts.scheme == "tcp":
            return Aside.CLOSED, closed.EMPTY_PROTOCOL
        host = asked.facts.authority.host
        if not isinstance(host, str) and classify_address(host) is AddressClass.METADATA:
            return Aside.CLOSED, closed.PLATFORM
        return None if asked.whole else (Aside.UNSEEN, closed.COUNTED)

    def _opened(self, entry: Entry, refusal: Refusal, asked: Asked, tally: Tally) -> tuple[Aside, Words] | None:
        """Gather it, or say why not."""
        if refusal.reason == Reason.ADDRESS_REFUSED.value and (apart := self._address(entry, refusal, asked)):
            return apart
        if asked.facts.stage is Stage.CONNECTION:
            splice = entry.plane == Plane.SPLICE.value or refusal.reason == _REJECTED
            taken = self.gathered.connection(asked, tally, splice=splice)
            return None if taken else (Aside.LEFT_OUT, closed.TOO_MANY)
        unclear = _UNCLEAR.match(refusal.detail)
        what = unclear[1] if unclear else ""
        pattern = path_pattern(asked)
        if pattern is None or (what == "path" and not asked.cut):
            return (Aside.UNSEEN, closed.CUT) if asked.cut else (Aside.CLOSED, closed.AMBIGUOUS)
        taken = self.gathered.request(asked, pattern, tally, any_query=what == "query")
        return None if taken else (Aside.LEFT_OUT, closed.TOO_MANY)

    def _address(self, entry: Entry, refusal: Refusal, asked: Asked) -> tuple[Aside, Words] | None:
        """Take the one address that was refused; else say why it cannot be opened."""
        found = _ADDRESS.match(refusal.detail)
        address = parse_address(found[1]) if found else None
        if address is None:
            return Aside.UNSEEN, closed.UNTOLD_ADDRESS
        kind = classify_address(address)
        if kind is AddressClass.METADATA:
            return Aside.CLOSED, closed.PLATFORM
        if kind.opening is Opening.NEVER:
            return Aside.CLOSED, closed.NO_SUCH_ADDRESS
        if self._by_rule(entry.rule):
            why = f"Rule {entry.rule} allows the host, but not {address}, which is {kind.value}."
            return Aside.CHANGE, (why, f'Add addresses = ["{address}/{address.max_prefixlen}"] to rule {entry.rule}.')
        return None if self.gathered.address(asked, address) else (Aside.LEFT_OUT, closed.TOO_MANY)

    @staticmethod
    def _by_rule(rule: str) -> bool:
        return rule not in {"", OBSERVER.name}
