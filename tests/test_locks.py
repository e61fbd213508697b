"""The lock files hold what pyproject.toml asks for: exact, hashed, and free of any index."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.tree import ROOT

LOCKS: Final = ROOT / "requirements"
ENTRY: Final = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<marker> ; [^\\]+)?(?P<hashes>( \\\n +--hash=sha256:[0-9a-f]{64})+)\n"
)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def wanted(lock: str) -> list[Requirement]:
    read = project()
    groups = {"runtime.lock": [], "dev.lock": read["dependency-groups"]["dev"]}
    return [Requirement(line) for line in (*read["project"]["dependencies"], *groups[lock])]


def entries(lock: str) -> dict[str, Version]:
    text = (LOCKS / lock).read_text(encoding="utf-8")
    return {found["name"]: Version(found["version"]) for found in ENTRY.finditer(text)}


@pytest.mark.parametrize("lock", ["runtime.lock", "dev.lock"])
def test_lock_satisfies_the_project(lock: str) -> None:
    locked = entries(lock)
    unmet = [
        str(asked)
        for asked in wanted(lock)
        if (version := locked.get(canonicalize_name(asked.name))) is None or version not in asked.specifier
    ]
    assert not unmet, f"{lock} is older than pyproject.toml; run scripts/lock: {unmet}"


@pytest.mark.parametrize("lock", ["runtime.lock", "dev.lock"])
def test_lock_is_entries_with_hashes_and_comments_only(lock: str) -> None:
    text = (LOCKS / lock).read_text(encoding="utf-8")
    rest = [line for line in ENTRY.sub("", text).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert not rest, "neither an exact version with hashes nor a comment"
    assert "://" not in text


def test_development_lock_has_the_versions_of_the_runtime_lock() -> None:
    runtime, development = entries("runtime.lock"), entries("dev.lock")
    assert runtime
    assert runtime.items() <= development.items()


def test_every_lock_is_tested() -> None:
    assert {path.name for path in Path(LOCKS).iterdir()} == {"runtime.lock", "dev.lock"}
