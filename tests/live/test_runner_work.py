"""Ordinary work in a real sandbox of the runner, and what is refused there though it would work outside.

docs/reference/inside.md lists both; a test holds the page against the tables.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.live.runners import Daemon, daemon, serving_uid
from tests.tree import ROOT
from wicketgate.runner.client import Authority, Call, Completed, Runner

pytestmark = pytest.mark.live
CASES = Path(__file__).parents[1] / "cases"
WORKS: dict[str, dict[str, str]] = tomllib.loads((CASES / "must_work.toml").read_text())
FAILS: dict[str, dict[str, str]] = tomllib.loads((CASES / "must_not_work.toml").read_text())


def here(table: dict[str, dict[str, str]]) -> list[str]:
    """The rows whose program is installed."""
    return [title for title, row in table.items() if shutil.which(row.get("needs", "bash"), path="/usr/bin:/bin")]


def words(script: str) -> list[str]:
    return ["/bin/bash", "-euo", "pipefail", "-c", script]


async def run(runner: Runner, served: Daemon, title: str, script: str) -> Completed:
    place = served.workspace(re.sub(r"\W+", "-", title))
    return await runner.run(Call(argv=words(script), timeout=120), Authority(workspace=str(place)))


@pytest.mark.parametrize("title", here(WORKS))
async def test_ordinary_work_passes(served: Daemon, runner: Runner, title: str) -> None:
    done = await run(runner, served, title, WORKS[title]["script"])
    assert done.code == 0, done


@pytest.mark.parametrize("title", here(FAILS))
async def test_what_the_boundary_refuses(served: Daemon, runner: Runner, title: str) -> None:
    row = FAILS[title]
    done = await run(runner, served, title, row["script"])
    assert done.code != 0, done
    assert re.search(row["said"], (done.stdout + done.stderr).decode()), done


@pytest.mark.parametrize("title", here(FAILS))
def test_the_oracle_outside_it_works(title: str) -> None:
    uid = serving_uid()
    drop = {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="wicketgate-outside-") as place:
        if os.geteuid() == 0:
            os.chown(place, uid, uid)
        environ = {"PATH": "/usr/bin:/bin", "HOME": place, "TMPDIR": place}
        done = subprocess.run(  # type: ignore[call-overload]
            words(FAILS[title]["script"]), cwd=place, env=environ, capture_output=True, timeout=120, check=False, **drop
        )
    assert done.returncode == 0, done


PRIVILEGED = {
    "su": "su -c true",
    "sudo": "sudo -n true",
    "mount": "mount -t tmpfs none /tmp",
    "chroot": "chroot / true",
    "mknod": "mknod null c 1 3",
    "ping": "ping -c 1 192.0.2.1",
    "dmesg": "dmesg",
    "perf": "perf stat true",
}


async def test_nothing_that_needs_another_user_or_a_capability_works(served: Daemon, runner: Runner) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/inside.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in PRIVILEGED)
    for name, script in PRIVILEGED.items():
        done = await run(runner, served, "privileged", script)
        assert done.code != 0, (name, done)


async def test_a_writable_reservation_counts_only_without_control_groups(served: Daemon, runner: Runner) -> None:
    reserve = "import mmap; mmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)"
    done = await run(runner, served, "reserve", f"python3 -c '{reserve}'")
    assert (done.code == 0) is ((await runner.health()).bounds != "none"), done


def test_the_example_of_the_guide() -> None:
    with daemon() as made:
        environ = {**os.environ, "WICKETGATE_RUNNER": str(made.socket)}
        example = ROOT / "tests" / "examples" / "tool_calls.py"
        done = subprocess.run(
            [sys.executable, str(example)],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert (done.returncode, done.stdout) == (0, "0 hello\nkept\n0\n42\n"), done.stderr
