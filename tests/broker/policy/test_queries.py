"""Queries of rules: each parameter listed for an allow, any parameter for a deny, ambiguous ones for neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.problems import Mistake
from broker.policy.queries import accepts, canonical_parameters, hits, parse_deny_parameter, parse_query_pattern

TEXTS = ("page=*", "sort=asc", "full", "caf%c3%a9=1", "empty=")
ENTRIES = tuple(map(parse_query_pattern, TEXTS))
DENIED = tuple(map(parse_deny_parameter, TEXTS))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (None, True),
        ("", True),
        ("page=1", True),
        ("page=", True),
        ("page=a=b", True),
        ("page=1&page=2", True),
        ("sort=asc&full", True),
        ("caf%C3%A9=1", True),
        ("caf%c3%A9=1", True),
        ("empty=", True),
        ("page", False),
        ("sort=desc", False),
        ("sort=asc&sort=desc", False),
        ("Page=1", False),
        ("full=", False),
        ("full=1", False),
        ("empty", False),
        ("page=1&admin=1", False),
        ("page[]=1", False),
        (" page=1", False),
    ],
)
def test_an_allow_rule_lists_every_parameter(query: str | None, expected: bool) -> None:
    parameters = canonical_parameters(query)
    assert (parameters is not None and accepts(ENTRIES, parameters)) is expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        *(("x=1&sort=asc", True), ("page=7", True), ("x=1", False), ("sort=desc", False), (None, False)),
        *(("full&x", True), ("full=", True), ("full=1", False), ("page", True), ("page=", True), ("empty", True)),
        *(("pages", False), ("sort", False), ("sort=", False)),
    ],
)
def test_a_deny_rule_hits_any_parameter(query: str | None, expected: bool) -> None:
    parameters = canonical_parameters(query)
    assert parameters is not None
    assert hits(DENIED, parameters) is expected


@pytest.mark.parametrize(
    ("entry", "same", "others"),
    [
        ("filter[x]=*", ["filter%5Bx%5D=1", "filter%5bx]=1", "FILTER[X]="], ["filter=1", "filter[y]=1", "filterx=1"]),
        ("at=a:b", ["at=a%3Ab", "at=a%3ab", "AT=A:B"], ["at=a", "at=a%20b"]),
        ("q=a%20b", ["q=a+b", "q=a%20b", "q=a%2Bb"], ["q=ab", "q=a"]),
        ("to=me@x", ["to=me%40x"], ["to=me"]),
        ("x=a=b", ["x=a%3Db"], ["x%3Da=b"]),
        (
            "admin=*",
            ["Admin=1", "admin[]=1", "admin%5B%5D=1", "admin[a][b]=1", "%20admin=1", "+admin=1"],
            ["[admin]=1"],
        ),
        ("user_id=7", ["user.id=7", "user+id=7", "USER_ID=7"], ["user-id=7", "user.id=8"]),
        ("caf%C3%A9=*", ["CAF%C3%89=1", "cafe%CC%81=1"], ["caf=1"]),
        ("full", ["FULL", "full="], ["full=1", "fuller"]),
    ],
)
def test_a_denied_parameter_is_denied_in_every_spelling(entry: str, same: list[str], others: list[str]) -> None:
    for query in (*same, *others):
        parameters = canonical_parameters(f"a=1&{query}")
        assert parameters is not None
        assert hits([parse_deny_parameter(entry)], parameters) is (query in same), query


def test_a_query_of_very_many_parameters_is_judged_in_time() -> None:
    """Each with each would be 64 million comparisons."""
    listed = [f"p{number}=1" for number in range(8000)]
    sent = canonical_parameters("&".join(f"p{number}=1" for number in reversed(range(8000))))
    assert sent is not None
    assert accepts([parse_query_pattern(text) for text in listed], sent)
    assert not hits([parse_deny_parameter(f"x{text}") for text in listed], sent)


@pytest.mark.parametrize(
    "query",
    [
        "page=1;admin=1",
        "p%61ge=1",
        "page=%31",
        "a=%00",
        "a=%0a",
        "a=%2525",
        "a=%25",
        "a=%c0%af",
        "a=%ef%bc%86b",
        "a=é",
        "a=1 2",
        "a=%zz",
        "a=%",
        "&a=1",
        "a=1&",
        "a=1&&b=2",
        "=1",
        "a=1#b",
        "a\r\nb",
        "a=%3bb",
        "a\\b",
        "%e2%80%8ba=1",
    ],
)
def test_an_ambiguous_query_has_no_parameters(query: str) -> None:
    assert canonical_parameters(query) is None


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("a=*", "a=*", True),
        ("a=*", "a=1", True),
        ("a=*", "a=", True),
        ("a=*", "a", False),
        ("a=1", "a=1", True),
        ("a=1", "a=*", False),
        ("a=1", "a=2", False),
        ("a", "a", True),
        ("a", "a=", False),
        ("b=*", "a=1", False),
    ],
)
def test_cover(wide: str, narrow: str, expected: bool) -> None:
    assert parse_query_pattern(wide).covers(parse_query_pattern(narrow)) is expected


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("", None),
        ("?a=1", '"a=1"'),
        ("a=1&b=2", '"a=1", "b=2"'),
        ("a=1*", '"a=*"'),
        ("*", None),
        ("a=b;c", None),
        ("=1", None),
        ("a b=1", None),
    ],
)
def test_an_entry_that_can_never_match_is_refused(text: str, suggestion: str | None) -> None:
    with pytest.raises(Mistake) as caught:
        parse_query_pattern(text)
    assert caught.value.suggestion == suggestion


@given(
    st.text(alphabet="a=*1&%20", max_size=8),
    st.text(alphabet="a=*1&%20", max_size=8),
    st.text(alphabet="a=1", max_size=4),
)
def test_cover_is_sound(one: str, other: str, parameter: str) -> None:
    try:
        wide, narrow = parse_query_pattern(one), parse_query_pattern(other)
    except Mistake:
        return
    if wide.covers(narrow) and narrow.matches(parameter):
        assert wide.matches(parameter)
    assert parse_query_pattern(narrow.text) == narrow
