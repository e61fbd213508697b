"""The switch and the counts that CI rests on: a skip fails under the switch, and nothing goes uncounted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

SUITE = """
import pytest

def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("for a reason")
@pytest.mark.skip(reason="marked")
def test_marked(): pass
@pytest.mark.root_only
def test_root(): pass
@pytest.mark.ordinary_only
def test_ordinary(): pass
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
"""
CHILD = """
import subprocess

GLIBC_OWN = 0b11 << 31  # signals 32 and 33: glibc may leave them ignored in what it spawns, and no program may set them

def test_child():
    told = subprocess.run(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout
    assert int(told.split()[1], 16) & ~GLIBC_OWN == 0
"""
SKIPPED_MODULE = "import pytest\npytest.importorskip('a_module_that_is_nowhere')\ndef test_never(): pass\n"


def run(suite: dict[str, str], where: Path, *options: str, no_skip: str) -> tuple[dict[str, int], str]:
    for name, text in suite.items():
        (where / name).write_text(text)
    (where / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\n")
    (where / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    counts = where / "counts"
    environment = {**os.environ, "WICKETGATE_NO_SKIP": no_skip, "WICKETGATE_TEST_COUNTS": str(counts)}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", *options],
        cwd=where,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (1 if "test_suite.py" in suite else 2 if no_skip == "1" else 5)
    told: dict[str, int] = json.loads(counts.read_text())  # one line: a second one is no JSON
    return told, done.stdout


def test_without_the_switch_a_skip_is_a_skip(tmp_path: Path) -> None:
    counts, _ = run({"test_suite.py": SUITE}, tmp_path, no_skip="0")
    assert counts == {"passed": 2, "failed": 2, "skipped": 2}


def test_with_the_switch_a_skip_fails_and_says_why(tmp_path: Path) -> None:
    counts, output = run({"test_suite.py": SUITE}, tmp_path, no_skip="1")
    assert counts == {"passed": 2, "failed": 4, "skipped": 0}
    assert "for a reason" in output


def test_signals_that_the_starter_ignored_are_restored(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\n")
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_child.py").write_text(CHILD)
    done = subprocess.run(
        ["/bin/sh", "-c", "trap '' HUP INT QUIT TSTP; exec \"$@\"", "sh", sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "WICKETGATE_TEST_COUNTS": str(tmp_path / "counts")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_workers_do_not_count_again(tmp_path: Path) -> None:
    counts, _ = run({"test_suite.py": SUITE}, tmp_path, "-n", "2", no_skip="0")
    assert counts == {"passed": 2, "failed": 2, "skipped": 2}


@pytest.mark.parametrize(("no_skip", "failed", "skipped"), [("0", 0, 1), ("1", 1, 0)])
def test_a_module_that_skips_itself(tmp_path: Path, no_skip: str, failed: int, skipped: int) -> None:
    counts, _ = run({"test_skipped.py": SKIPPED_MODULE}, tmp_path, no_skip=no_skip)
    assert counts == {"passed": 0, "failed": failed, "skipped": skipped}
