"""From a session to rules, and from a policy back to the log: what `suggest` and `replay` say, as pages.

A pasted policy is text and stays text: it is parsed without the machine, so that no preset and no path in it is looked
up, and nothing of it is kept.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from broker.audit.errors import UnknownRecord
from broker.audit.index import AuditIndex
from broker.audit.overview import session_row
from broker.audit.questions import Filter, every
from broker.audit.records import Entry
from broker.policy.document import parse_policy
from broker.policy.problems import PolicyError
from broker.policy.rules import Policy
from broker.review.page.asking import filters_in, read_filter
from broker.review.page.bounded import within
from broker.review.page.reader import Unanswered
from broker.review.page.rendering import render
from broker.review.replay import Change, replay
from broker.review.suggest import format_rules, suggest

MOST_POLICY: Final = 1024 * 1024  # bytes of a pasted policy
SECONDS: Final = 5.0
"""For reading a policy, and for reading records: what was read of these by then is judged, and the page says so."""
_GROUPS: Final = 300
_PROBLEMS: Final = 100
_ALONE: Final = "version = 1\n\n[egress]\nenabled = true\n\n"
_START: Final = _ALONE + '[[rule]]\nname = "project-api"\naction = "allow"\nhosts = ["api.example.com"]\n'


class InTime:
    """Entries, until the time is up. `cut`: there are more; `count`: so many were given."""

    def __init__(self, entries: Iterable[Entry], seconds: float = SECONDS) -> None:
        self._entries = entries
        self._seconds = seconds
        self.cut = False
        self.count = 0

    def __iter__(self) -> Iterator[Entry]:
        """Give each entry."""
        until = time.monotonic() + self._seconds
        for entry in self._entries:
            if time.monotonic() > until:
                self.cut = True
                return
            self.count += 1
            yield entry


def prepare() -> None:
    """Load what some policies need late (codecs, the Public Suffix List), before it may become unreadable."""
    parse_policy(_ALONE + '[[rule]]\nname = "a"\naction = "allow"\nhosts = ["*.b\u00fccher.example"]\n', source="line")


def suggestion(index: AuditIndex, session_id: str, form: str) -> str:
    """The smallest rules that would have allowed a session. Raises `UnknownRecord`."""
    if session_row(index, session_id) is None:
        raise UnknownRecord(f"no record of a session {session_id}")
    entries = InTime(every(index, Filter(session=session_id)))
    with within(2 * SECONDS, _late("the rules cannot be worked out", 2 * SECONDS, "suggest --session SESSION")):
        found = suggest(entries)
        text = format_rules(found)
    return render(
        "suggest.html", session=session_id, found=found, text=text, alone=_ALONE + text, form=form, entries=entries
    )


def replay_form(query: Mapping[str, str], form: str) -> str:
    """The form that asks for a policy and for the records to judge again."""
    given = filters_in(query)
    return _page(form, given or {"since": "1d"}, _START)


def replayed(index: AuditIndex, fields: Mapping[str, str], form: str) -> tuple[int, str]:
    """What the pasted policy would have changed: a status and a page. Raises `BadQuestion`."""
    given = filters_in(fields)
    wanted = read_filter(given, datetime.now(UTC))
    text = fields.get("policy", "").replace("\r\n", "\n")
    policy = _parse(text)
    if isinstance(policy, PolicyError):
        lines = [problem.format("line") for problem in policy.problems]
        presets = any("preset" in line for line in lines)
        return 422, _page(form, given, text, problems=lines[:_PROBLEMS], presets=presets)
    entries = InTime(every(index, wanted))
    with within(2 * SECONDS, _late("the records cannot be judged again", 2 * SECONDS, "replay --policy FILE")):
        found = replay(entries, policy)
    return 200, _page(form, given, text, found=found, entries=entries)


def _parse(text: str) -> Policy | PolicyError:
    """Without the machine: a preset is a problem, and the path of a certificate a word that nobody opens."""
    try:
        with within(SECONDS, _late("the policy cannot be read", SECONDS, "replay --policy FILE")):
            return parse_policy(text, source="line")
    except PolicyError as error:
        return error


def _late(what: str, seconds: float, command: str) -> Unanswered:
    return Unanswered(f"{what} within {seconds:g} seconds; `wicketgate audit {command}` has no limit")


def _page(form: str, given: Mapping[str, str], policy: str, **values: object) -> str:
    shown = {"problems": (), "presets": False, "found": None, "entries": None, **values}
    return render("replay.html", form=form, given=given, policy=policy, changes=tuple(Change), most=_GROUPS, **shown)
