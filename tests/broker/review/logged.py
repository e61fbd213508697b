"""Records for tests as the broker writes them: judged by `decide`, redacted and escaped by the log's own encoder."""

import itertools
from typing import Any

import msgspec

from broker.audit.records import Entry, Kind, Plane, Record, Verdict, decode_entry, encode_record
from broker.policy.decide import Denied, Facts
from broker.policy.grants import Grant
from broker.policy.reasons import Reason
from broker.policy.rules import Policy
from broker.review.judging import judge

_numbers = itertools.count(1)


def entry_of(record: Record, number: int | None = None) -> Entry:
    """The record as it is read back."""
    text = msgspec.json.decode(encode_record(record))
    text |= {"id": f"log-{number or next(_numbers)}", "time": "2026-11-30T12:00:00.000000Z"}
    return decode_entry(msgspec.json.encode(text))


def logged(facts: Facts, policy: Policy, grant: Grant | None = None) -> Entry:
    """The decision record of a question, as `broker.gateway.records` makes it."""
    verdict = judge(facts, policy, grant)
    would = None if isinstance(verdict, Denied) else verdict.would
    detail = verdict.detail if isinstance(verdict, Denied) else ""
    if would is not None:
        detail = f"would be denied: {would.reason}: {would.detail}"
    return asked(
        facts,
        reason=verdict.reason,
        verdict=Verdict.DENY if isinstance(verdict, Denied) else Verdict.ALLOW,
        rule=verdict.rule.name if verdict.rule else "",
        detail=detail,
        grant=grant.id if grant else "",
    )


def asked(facts: Facts, **more: Any) -> Entry:
    """A record about a question; what is not given is that of a refused host."""
    spliced = facts.method is None and facts.scheme == "https"
    plane = {"http": Plane.HTTP, "tcp": Plane.TCP, "https": Plane.SPLICE if spliced else Plane.INSPECT}[facts.scheme]
    mark = "" if facts.query is None else "?"
    fields = {
        "kind": Kind.DECISION,
        "session": "s-1",
        "plane": plane,
        "scheme": facts.scheme,
        "authority": str(facts.authority),
        "method": facts.method or "",
        "path": f"{facts.path or ''}{mark}{facts.query or ''}",
        "verdict": Verdict.DENY,
        "reason": Reason.HOST_NOT_ALLOWED,
    } | more
    return entry_of(Record(**fields))
