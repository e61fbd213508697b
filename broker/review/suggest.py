"""Records → the smallest set of rules that would have allowed what was refused, and nothing else. Pure.

Hosts, methods and paths were chosen by payloads. So what is suggested is exact where the log is, said to be wider where
the log hides something, bounded in number, read back by the policy's own strict reader, and judged by `decide`.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from broker.audit.records import Entry
from broker.policy.rules import Policy
from broker.review.closed import INSPECTED_TOO
from broker.review.draft import Draft, Host, build_rule, drafts_of, join
from broker.review.fit import Unfit, fit
from broker.review.gather import MAX_COUNTED, OfHost
from broker.review.refusals import Refusals
from broker.review.rule_text import comment, format_rule
from broker.review.suggestion import Apart, Aside, SuggestedRule, Suggestion

__all__ = ["Apart", "Aside", "SuggestedRule", "Suggestion", "format_rules", "suggest"]

_NAME: Final = "suggested-"
_NAME_LENGTH: Final = 50  # a number may follow, and a name has at most 64
_UNPLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HEAD: Final = (
    "Rules that would have allowed what was refused. Read each one first: a payload chose these hosts and paths.",
    "The log holds no values of queries, so name=* takes any value.",
)


def suggest(entries: Iterable[Entry], policy: Policy | None = None) -> Suggestion:
    """Work out rules for what `entries` (in the order of time) show as denied, or as allowed for being observed only.

    With the policy in force the rules are named apart from its own, stand beside them and are judged with them. Memory
    is bounded, whatever the records hold.
    """
    found = Refusals()
    found.read(entries)
    fitting: list[Draft] = []
    for host, seen in found.gathered.hosts.items():
        for draft in _one_plane(host, seen, found):
            try:
                fitting.append(fit(draft, policy))
            except Unfit as unfit:
                reason = unfit.reason or draft.tally.reason
                found.asides.add(unfit.aside, reason, _where(draft), unfit.words, draft.tally)
    taken = () if policy is None else [rule.name for rule in policy.rules]
    return Suggestion(
        rules=tuple(_named(join(fitting), taken)),
        apart=tuple(found.asides),
        refusals=found.count,
        hosts_left_out=len(found.gathered.left_out),
    )


def _one_plane(host: Host, seen: OfHost, found: Refusals) -> Iterator[Draft]:
    """The drafts of a host, without those for connections of which the requests, or the plane, are known better."""
    for (port, plain), tally in list(seen.opened.items()):
        call = next((call for call in seen.calls if (call.port, call.plain) == (port, plain)), None)
        if call is not None:
            paths = seen.calls[call]
            (paths.all or next(iter(paths.exact.values()))).tally.take(seen.opened.pop((port, plain)))
        elif not plain and port in seen.spliced:
            seen.spliced[port].take(tally)
            del seen.opened[port, plain]
    inspected = {call.port for call in seen.calls if not call.plain}
    for draft in drafts_of(host, seen):
        if draft.tls.value == "splice" and draft.ports <= inspected:
            found.asides.add(Aside.CHANGE, draft.tally.reason, _where(draft), INSPECTED_TOO, draft.tally)
        else:
            yield draft


def _where(draft: Draft) -> str:
    return f"{min(map(str, draft.hosts))}:{min(draft.ports)}"


def _named(drafts: Iterable[Draft], names: Collection[str]) -> Iterator[SuggestedRule]:
    """Rules in a fixed order, each with a name of its first host that nothing else has."""
    taken = set(names)
    for draft in sorted(drafts, key=_order):
        first = _UNPLAIN.sub("-", min(map(str, draft.hosts)))
        base = f"{_NAME}{first}"[:_NAME_LENGTH].rstrip("-._")
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        yield SuggestedRule(
            rule=build_rule(draft, name),
            refusals=draft.tally.count,
            examples=draft.tally.examples,
            widened=draft.widened,
            notes=draft.notes,
        )


def _order(draft: Draft) -> tuple[object, ...]:
    keys = (draft.hosts, draft.ports, draft.methods or (), draft.paths or (), draft.names or ())
    return (*[sorted(map(str, key)) for key in keys], draft.tls.value, draft.plain, draft.websocket)


def format_rules(suggestion: Suggestion) -> str:
    """The suggested rules as `[[rule]]` tables of a policy file, the rest as comments. Ends with a newline."""
    parts = ["".join(comment(line) for line in _HEAD)] if suggestion.rules else [comment("No rule would open more.")]
    parts += ["".join(_rule_lines(one)) for one in suggestion.rules]
    if suggestion.hosts_left_out:
        more = "or more " if suggestion.hosts_left_out >= MAX_COUNTED else ""
        parts.append(comment(f"{suggestion.hosts_left_out} {more}other hosts are left out: ask for one with --host."))
    if suggestion.apart:
        parts.append("".join(_apart_lines(suggestion.apart)))
    return "\n".join(parts)


def _rule_lines(one: SuggestedRule) -> Iterator[str]:
    yield comment(f"{_times(one.refusals)}: {', '.join(one.examples)}")
    for text in one.widened:
        yield comment(f"WIDER than what was seen: {text}")
    for text in one.notes:
        yield comment(f"Note: {text}")
    yield format_rule(one.rule)


def _apart_lines(apart: Iterable[Apart]) -> Iterator[str]:
    yield comment("Not opened by these rules:")
    for aside in Aside:
        chosen = [one for one in apart if one.aside is aside]
        if chosen:
            yield comment("")
            yield comment(f"{aside.value}:")
        for one in chosen:
            where = f" {one.where}" if one.where else ""
            yield comment(f"{one.reason}{where}, {_times(one.count)}: {', '.join(one.examples)}", "  ")
            yield comment(f"{one.why} {one.cure}", "    ")


def _times(count: int) -> str:
    return f"{count} refusal{'s' * (count != 1)}"
