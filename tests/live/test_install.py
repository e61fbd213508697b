"""`pip install .` into a clean environment gives a whole, working `wicketgate` from any directory."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.tree import PACKAGES, ROOT, project_files

pytestmark = [pytest.mark.live, pytest.mark.smoke]


def run(*command: str | Path, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], cwd=where, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the locked dependencies and this project installed from its directory, not as editable."""
    place = tmp_path_factory.mktemp("installed")
    made = run(sys.executable, "-m", "venv", place / "venv", where=place)
    assert made.returncode == 0, made.stderr
    python = place / "venv" / "bin" / "python"
    lock = ROOT / "requirements" / "runtime.lock"
    for arguments in (["--require-hashes", "-r", str(lock)], ["--no-deps", str(ROOT)]):
        done = run(python, "-m", "pip", "install", "-qq", *arguments, where=place)
        assert done.returncode == 0, done.stderr
    return place / "venv"


def test_dependencies_are_met(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "bin" / "python", "-m", "pip", "check", where=tmp_path)
    assert done.returncode == 0, done.stdout


def test_command_runs_from_any_directory(installed: Path, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for where in (tmp_path, Path("/")):
        done = run(installed / "bin" / "wicketgate", "--version", where=where)
        assert done.returncode == 0, done.stderr
        assert version in done.stdout


@pytest.mark.parametrize("words", [(), ("--allow", "origin.example:80")], ids=["alone", "with a cable"])
def test_a_command_is_run_from_any_directory(installed: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    fetch = "curl -s -o /dev/null -w '%{http_code}' http://other.example/"
    for where in (tmp_path, Path("/")):
        done = run(installed / "bin" / "wicketgate", "run", *words, "--", "sh", "-c", fetch, where=where)
        assert done.stdout == ("403" if words else "000"), done.stderr
        assert done.returncode == (0 if words else 6), done.stderr


def test_every_file_of_the_packages_is_installed(installed: Path) -> None:
    site = next((installed / "lib").glob("python3.*/site-packages"))
    ours = [path for path in project_files() if path.parts[0] in PACKAGES]
    assert ours
    assert [str(path) for path in ours if not (site / path).is_file()] == []
