"""The files of this project as a checkout has them, for the tests that read the tree instead of running it."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("wicketgate", "broker", "netns", "sandbox", "certs")
NOT_OURS: Final = ("__pycache__", "node_modules", "dist", "build")


@cache
def project_files() -> tuple[Path, ...]:
    """Tracked and new files, relative to the root. A copy without its repository is walked instead."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        found = {Path(name) for name in listed.split("\0") if name}
    else:
        found = {path.relative_to(ROOT) for path in ROOT.rglob("*")}
    return tuple(sorted(path for path in found if (ROOT / path).is_file() and not _foreign(path)))


def _foreign(path: Path) -> bool:
    return any(
        part in NOT_OURS or part.startswith((".venv", ".git", ".mypy", ".ruff", ".pytest")) for part in path.parts
    )


def module_name(path: Path) -> str:
    """`broker/wire/hello.py` is `broker.wire.hello`, `broker/wire/__init__.py` is `broker.wire`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
