"""Oracles: without the boundary these attempts work, for the same user on the same machine.

Each belongs to a live test that shows the attempt refused inside; tests/cases/promises.toml says to which.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.runners import serving_uid
from tests.live.test_identity import PLANTS

pytestmark = pytest.mark.live


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the serving user's."""
    with tempfile.TemporaryDirectory(prefix="wicketgate-oracle-") as directory:
        if os.geteuid() == 0:
            os.chown(directory, serving_uid(), serving_uid())
        yield Path(directory)


def outside(place: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command as the serving user, with nothing around it."""
    uid = serving_uid()
    drop: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(words, cwd=place, capture_output=True, check=False, timeout=60, **drop)


def test_set_id_files_can_be_planted(place: Path) -> None:
    done = outside(place, "/usr/bin/python3", "-c", PLANTS)
    told = done.stdout.decode().splitlines()
    assert {"chmod u+s done", "chmod g+s done", "fchmod done"} <= set(told), done


def test_files_that_editors_and_shells_take_up_can_be_planted(place: Path) -> None:
    files = ".vscode/tasks.json sub/.vscode/tasks.json .envrc .bashrc"
    script = f"mkdir -p .vscode sub/.vscode && for f in {files}; do echo x >$f || exit 1; done"
    assert outside(place, "/bin/sh", "-c", script).returncode == 0
    assert (place / ".vscode" / "tasks.json").read_text() == "x\n"


def test_an_interpreter_line_names_whoever_executes_it(place: Path) -> None:
    """What the runner's own program would be to a payload, if it executed a payload's file itself."""
    (place / "trap").write_text("#!/proc/self/exe\nimport os, sys\nprint(os.path.realpath('/proc/self/exe'))\n")
    (place / "trap").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", "import os; os.execv('./trap', ['./trap'])"], cwd=place, capture_output=True, check=False
    )
    assert done.stdout.decode().strip() == os.path.realpath(sys.executable), done


def test_two_processes_without_a_boundary_share_temporary_files_and_memory(place: Path) -> None:
    name = f"wicketgate-oracle-{os.getpid()}"
    try:
        assert outside(place, "/bin/sh", "-c", f"echo secret >/dev/shm/{name}").returncode == 0
        assert outside(place, "/bin/cat", f"/dev/shm/{name}").stdout == b"secret\n"
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
