"""Paths: the tables of `tests/cases/policy_paths.toml`, and what holds for every path and pattern."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.paths import (
    MAX_PATTERN,
    PathPattern,
    canonical_path,
    deny_forms,
    parse_deny_pattern,
    parse_path_pattern,
    path_fault,
)
from broker.policy.problems import Mistake

CASES: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "cases" / "policy_paths.toml").read_text("utf-8"))
AMBIGUOUS = [
    pytest.param(path, id=f"{group['kind']}: {path!a}") for group in CASES["ambiguous"] for path in group["paths"]
]


@pytest.mark.parametrize("case", CASES["clear"], ids=lambda case: repr(case["path"]))
def test_a_clear_path_is_judged_as_it_stands(case: dict[str, str]) -> None:
    assert path_fault(case["path"]) is None
    assert canonical_path(case["path"]) == case.get("form", case["path"])


@pytest.mark.parametrize("path", AMBIGUOUS)
def test_an_ambiguous_path_is_refused_with_its_fault(path: str) -> None:
    assert canonical_path(path) is None
    fault = path_fault(path)
    assert fault is not None
    assert fault.isprintable()


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        pytest.param(case["pattern"], path, verdict == "yes", id=f"{case['pattern']} {verdict} {path!a}")
        for case in CASES["match"]
        for verdict in ("yes", "no")
        for path in case[verdict]
    ],
)
def test_a_pattern_matches(pattern: str, path: str, expected: bool) -> None:
    canonical = canonical_path(path)
    assert (canonical is not None and parse_path_pattern(pattern).matches(canonical)) is expected


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        pytest.param(case["wide"], narrow, verdict == "yes", id=f"{case['wide']} {verdict} {narrow}")
        for case in CASES["cover"]
        for verdict in ("yes", "no")
        for narrow in case[verdict]
    ],
)
def test_a_pattern_covers(wide: str, narrow: str, expected: bool) -> None:
    assert parse_path_pattern(wide).covers(parse_path_pattern(narrow)) is expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        pytest.param(case["pattern"], path, verdict == "yes", id=f"{case['pattern']} {verdict} {path!a}")
        for case in CASES["deny"]
        for verdict in ("yes", "no")
        for path in case[verdict]
    ],
)
def test_a_denied_path_is_denied_in_every_spelling(pattern: str, path: str, expected: bool) -> None:
    forms = deny_forms(path)
    assert forms
    assert any(parse_deny_pattern(pattern).matches(form) for form in forms) is expected


@pytest.mark.parametrize("run", [".", "%20", ".%20", ":", ":$", "a./", "%CC%81"])
def test_the_forms_of_a_path_are_made_in_one_pass(run: str) -> None:
    """A megabyte: once more for each of its characters would take hours."""
    assert deny_forms("/" + run * (1_000_000 // len(run)) + "x")


@pytest.mark.parametrize("case", CASES["mistake"], ids=lambda case: repr(case["pattern"]))
def test_a_pattern_that_can_never_match_is_refused_with_its_cure(case: dict[str, str]) -> None:
    with pytest.raises(Mistake) as caught:
        parse_path_pattern(case["pattern"])
    assert caught.value.suggestion == case.get("suggestion")


def test_a_pattern_has_a_longest_length() -> None:
    parse_path_pattern("/" + "a" * (MAX_PATTERN - 1))
    with pytest.raises(Mistake):
        parse_path_pattern("/" + "a" * MAX_PATTERN)


SEGMENT = st.sampled_from(["a", "b", "ab", "ba", "aab", "z"])
PATTERN_SEGMENT = st.sampled_from(["a", "b", "ab", "*", "a*", "*b", "a*b", "**", ""])


def build(segments: list[str]) -> str:
    """A legal pattern: one `**` at most, empty segments only at the end."""
    kept = [segment for segment in segments if segment]
    first = kept.index("**") if "**" in kept else len(kept)
    kept = [segment for index, segment in enumerate(kept) if segment != "**" or index == first]
    return "/" + "/".join(kept) + ("/" if segments and not segments[-1] and kept and kept[-1] != "**" else "")


PATTERNS = st.lists(PATTERN_SEGMENT, max_size=4).map(build).map(parse_path_pattern)
PATHS = st.builds(
    lambda parts, slash: "/" + "/".join(parts) + ("/" if slash and parts else ""),
    st.lists(SEGMENT, max_size=5),
    st.booleans(),
)


@given(PATTERNS, PATTERNS, PATHS)
def test_cover_is_sound(wide: Any, narrow: Any, path: str) -> None:
    if wide.covers(narrow) and narrow.matches(path):
        assert wide.matches(path)


@given(PATTERNS)
def test_every_pattern_covers_itself(pattern: Any) -> None:
    assert pattern.covers(pattern)


@given(st.text(alphabet=st.sampled_from("/.%;\\2eEfFcC5aA~ é\0"), max_size=12).map(lambda text: "/" + text))
def test_what_is_judged_is_what_is_forwarded(path: str) -> None:
    canonical = canonical_path(path)
    assert (canonical is None) is (path_fault(path) is not None)
    if canonical is not None:
        assert canonical.lower() == path.lower()
        assert not {".", ".."} & set(canonical.split("/"))
        assert "//" not in canonical
        assert canonical_path(canonical) == canonical


@given(st.text(max_size=40))
def test_any_text_is_a_pattern_or_a_mistake(text: str) -> None:
    found = outcome(text)
    assert str(found).isprintable() if isinstance(found, Mistake) else found.text == text


def outcome(text: str) -> PathPattern | Mistake:
    try:
        return parse_path_pattern(text)
    except Mistake as mistake:
        return mistake
