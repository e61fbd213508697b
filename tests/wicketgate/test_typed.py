"""`wicketgate run` in its usual form is read as the command line's library reads it, or left to that."""

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wicketgate.commands.run import command as declared
from wicketgate.typed import REPEATED, SINGLE, read

WORDS = st.sampled_from(
    [
        *(f"--{name}" for name in sorted(SINGLE | REPEATED)),
        *(f"--{name}=v" for name in sorted(SINGLE | REPEATED)),
        *(
            "--json",
            "--json=1",
            "--timeout=2.5",
            "--timeout=1_0",
            "--timeout=soon",
            "--help",
            "-h",
            "-",
            "--",
            "--allow=",
        ),
        *("---json", "-json", "json", "a", "b c", "", "7", "--jso", "--al", "=", "--=x", "--nosuch", "\udcff"),
    ]
)


def as_the_library_reads(words: list[str]) -> dict[str, Any]:
    """What was given, under the names of `read`; paths as text."""
    found = declared.make_context("run", list(words)).params
    found["policy"], found["json"] = found.pop("policy_file"), found.pop("as_json")
    found["cacert"] = tuple(map(str, found["cacert"]))
    found["policy"] = None if found["policy"] is None else str(found["policy"])
    return {name: value for name, value in found.items() if value not in {None, (), False}}


@given(st.lists(WORDS, max_size=7))
def test_both_read_the_same(words: list[str]) -> None:
    found = read(["run", *words])
    if found is not None:
        assert found == as_the_library_reads(words)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("run true", {"command": ("true",)}),
        ("run -- true --json", {"command": ("true", "--json")}),
        ("run a -- b", {"command": ("a", "--", "b")}),
        ("run --json -- a", {"json": True, "command": ("a",)}),
        ("run --allow a --allow=b:1 -- x", {"allow": ("a", "b:1"), "command": ("x",)}),
        ("run --allow -- x", {"allow": ("--",), "command": ("x",)}),
        (
            "run --policy f --cacert c --private p --resolve r x",
            {
                "policy": "f",
                "cacert": ("c",),
                "private": ("p",),
                "resolve": ("r",),
                "command": ("x",),
            },
        ),
        ("run --timeout 2 x", {"timeout": 2.0, "command": ("x",)}),
        ("run --timeout soon x", None),
        ("run --grant g --grant h x", None),
        ("run --grant= x", None),
        ("run --json", None),
        ("run --allow", None),
        ("run --", None),
        ("run --help", None),
        ("run -h x", None),
        ("run --nosuch x", None),
        ("run --js x", None),
        ("job --json x", None),
        ("", None),
    ],
)
def test_what_is_typed_in_the_usual_form(words: str, found: dict[str, Any] | None) -> None:
    assert read(words.split()) == found


def test_every_option_is_known_here() -> None:
    options = [one for one in declared.params if isinstance(one, click.Option) and one.name != "help"]
    valued = {one.opts[0].removeprefix("--"): one.multiple for one in options if not one.is_flag}
    assert {name for name, repeated in valued.items() if repeated} == REPEATED
    assert {name for name, repeated in valued.items() if not repeated} == SINGLE
    assert {one.opts[0] for one in options if one.is_flag} == {"--json"}
