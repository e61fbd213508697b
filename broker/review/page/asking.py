"""The filters of an address: those of `wicketgate audit search`. Pure: the time is given."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from broker.audit.questions import BadQuestion, Filter, parse_moment

_TEXTS: Final = ("session", "call", "grant", "host", "verdict", "reason", "rule", "method", "kind", "plane", "text")
_TIMES: Final = ("since", "until")
FIELDS: Final = (*_TEXTS, *_TIMES)
_LONGEST: Final = 1024


def filters_in(query: Mapping[str, str]) -> dict[str, str]:
    """The filters that a query gives, as they were typed. Raises `BadQuestion`."""
    given = {name: query[name].strip() for name in FIELDS if query.get(name, "").strip()}
    if any(len(value) > _LONGEST for value in given.values()):
        raise BadQuestion(f"a filter may have {_LONGEST} characters")
    return given


def read_filter(given: Mapping[str, str], now: datetime) -> Filter:
    """The filters as a question. Raises `BadQuestion`."""
    moments = {name: parse_moment(given[name], now) for name in _TIMES if name in given}
    texts = {name: given[name] for name in _TEXTS if name in given}
    return Filter(since=moments.get("since"), until=moments.get("until"), **texts)
