"""What the pages say of the command line, of each other and of the dependencies is so."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from scripts.dependencies import DOCUMENT, dependencies, document, locked
from tests.tree import ROOT, project_files
from wicketgate.commands.run import command as run

PAGES = [path for path in project_files() if path.suffix == ".md"]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_has_the_options_of_run() -> None:
    told = dict(re.findall(r"^\| `(--[a-z]+)( [^`]+)?` \|", README, re.MULTILINE))
    options = [one for one in run.params if isinstance(one, click.Option) and one.name != "help"]
    there = {one.opts[0]: "" if one.is_flag else " " + one.make_metavar(click.Context(run)) for one in options}
    assert told == there


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text("utf-8")):
        parts = urlsplit(target)
        if not parts.scheme and parts.path:
            assert (ROOT / page.parent / parts.path).exists(), f"{page} links to {target}"


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    wanted = {path.relative_to("docs") for path in PAGES if path.parts[0] == "docs"} - {Path("README.md")}
    assert not [str(path) for path in sorted(wanted) if f"]({path})" not in index]


def test_what_works_inside_is_what_is_tried() -> None:
    page = (ROOT / "docs/reference/inside.md").read_text("utf-8")
    cases = ROOT / "tests" / "cases"
    works, fails = (tomllib.loads((cases / f"{name}.toml").read_text()) for name in ("must_work", "must_not_work"))
    told = {one.strip() for cell in re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE) for one in cell.split(", ")}
    assert not [title for title in works if not set(title.split(", ")) <= told]
    for title, row in fails.items():
        assert f"| {title} | {row['instead']} |" in page


def test_the_dependencies_are_those_of_the_locks_with_their_own_licences() -> None:
    page = DOCUMENT.read_text("utf-8")
    rows = dict(re.findall(r"^\| \**([a-z0-9-]+)\** \| ([0-9]\S*) \|", page, re.MULTILINE))
    assert rows == locked("dev.lock"), "run scripts/dependencies"
    # A package that only another Python needs is not installed here; its licence is what was written there.
    if all(row.licence for row in dependencies("dev.lock", set())):
        assert page == document(), "run scripts/dependencies"


def test_every_dependency_says_its_licence() -> None:
    assert not [row.name for row in dependencies("dev.lock", set()) if row.licence in {"not stated", "UNKNOWN"}]


def test_the_readme_shows_the_example_that_runs_as_a_test() -> None:
    example = (ROOT / "tests" / "examples" / "grant_for_a_tool_call.py").read_text("utf-8")
    assert f"```python\n{example}```" in (ROOT / "README.md").read_text("utf-8")
