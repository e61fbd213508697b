"""Writes docs/reference/dependencies.md: the locked packages and the licences that their own metadata names.

It reads the lock files, pyproject.toml and what is installed; it asks no index.
"""

import re
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = ROOT / "docs" / "reference" / "dependencies.md"
ENTRY: Final = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^\s\\]+)", re.MULTILINE)
# Older metadata names licences in words; these are their SPDX names.
SPDX: Final = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
HEAD: Final = """# Dependencies

Written by `scripts/dependencies`; a test compares it with what is installed. Versions and hashes are in
`requirements/*.lock`, system programs in `scripts/system-packages.txt`.

| licence of | is |
|---|---|
| Wicketgate itself | Apache-2.0 |
| bubblewrap (executed, not linked) | LGPL-2.0-or-later |
| nftables, tmux (executed, not linked) | GPL-2.0-only, ISC |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One locked package. `licence` is what its metadata says, or empty where it is not installed here."""

    name: str
    version: str
    licence: str


def locked(lock: str) -> dict[str, str]:
    """Names and versions of a lock file."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    return {found["name"]: found["version"] for found in ENTRY.finditer(text)}


def licence_of(name: str) -> str:
    """The licence expression (PEP 639), else the classifiers, else the first line of the older free text."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    classifiers = [
        line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License :: ")
    ]
    free = (told.get("License") or "").strip().splitlines()
    found = classifiers or free[:1] or ["not stated"]
    return told.get("License-Expression") or " OR ".join(SPDX.get(one, one) for one in found)


def dependencies(lock: str, leave_out: set[str]) -> list[Dependency]:
    """What a lock file holds, in its order."""
    return [
        Dependency(name=name, version=version, licence=licence_of(name))
        for name, version in locked(lock).items()
        if name not in leave_out
    ]


def asked_for() -> set[str]:
    """What pyproject.toml names itself; the others come with these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    return {re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0].lower() for line in lines}


def table(title: str, rows: list[Dependency]) -> str:
    """A section of the document. What is asked for by name is in bold."""
    direct = asked_for()
    lines = [f"\n## {title}\n", "| package | version | licence |", "|---|---|---|"]
    for row in rows:
        name = f"**{row.name}**" if row.name in direct else row.name
        lines.append(f"| {name} | {row.version} | {row.licence} |")
    return "\n".join(lines) + "\n"


def document() -> str:
    """The whole page."""
    runtime = dependencies("runtime.lock", set())
    development = dependencies("dev.lock", {row.name for row in runtime})
    return HEAD + table("At run time", runtime) + table("To develop and test", development)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
