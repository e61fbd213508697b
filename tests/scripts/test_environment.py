"""scripts/environment.sh on machines that lack something: what it finds, and the one sentence when it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
INTERPRETER = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
# What the shell code itself calls; everything else is found through the PATH that a test gives.
TOOLS = ("sh", "dirname", "grep", "tr", "sort", "cat", "id", "cksum")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH with the plain tools and nothing else: no Python, no apt, no sudo."""
    place = tmp_path / "bin"
    place.mkdir()
    for tool in TOOLS:
        found = next(Path(where, tool) for where in ("/usr/bin", "/bin") if Path(where, tool).exists())
        (place / tool).symlink_to(found)
    return place


def shell(script: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run shell code after environment.sh, with `path` as the whole PATH of its look-ups."""
    prelude = f". scripts/environment.sh; PATH={path}; "
    environment = {"PATH": str(path), "HOME": "/nonexistent", **variables}
    command = ["/bin/sh", "-c", prelude + script, "scripts/test"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("PYENV_ROOT", f"versions/{VERSION}.99/bin/python3"),
        ("UV_PYTHON_INSTALL_DIR", f"cpython-{VERSION}.99-linux-x86_64-gnu/bin/python3"),
        ("HOME", f".pyenv/versions/{VERSION}.99/bin/python3"),
        ("HOME", f".local/share/uv/python/cpython-{VERSION}.99-linux/bin/python3"),
        ("HOME", f".local/bin/python{VERSION}"),
        ("HOME", f".asdf/installs/python/{VERSION}.99/bin/python3"),
        ("HOME", f".local/share/mise/installs/python/{VERSION}.99/bin/python3"),
    ],
)
def test_python_is_found_where_version_switchers_keep_it(bare: Path, tmp_path: Path, variable: str, below: str) -> None:
    place = tmp_path / "switcher" / below
    place.parent.mkdir(parents=True)
    place.symlink_to(INTERPRETER)
    done = shell(f"find_python {VERSION}", bare, **{variable: str(tmp_path / "switcher")})
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == INTERPRETER


def test_a_shim_that_refuses_to_run_is_passed_over(bare: Path, tmp_path: Path) -> None:
    shim = bare / f"python{VERSION}"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    place = tmp_path / ".pyenv" / "versions" / f"{VERSION}.99" / "bin" / "python3"
    place.parent.mkdir(parents=True)
    place.symlink_to(INTERPRETER)
    done = shell(f"find_python {VERSION}", bare, HOME=str(tmp_path))
    assert Path(done.stdout.strip()).resolve() == INTERPRETER


def test_an_older_python_is_not_taken(bare: Path) -> None:
    (bare / "python3").symlink_to(INTERPRETER)
    assert shell(f"find_python {VERSION}", bare).returncode == 0
    assert shell("find_python 2.99", bare).returncode != 0


def test_an_interpreter_named_and_absent_is_said(bare: Path) -> None:
    done = shell("ensure_python", bare, WICKETGATE_PYTHON="/nowhere/python3")
    assert (done.returncode, done.stderr) == (
        1,
        "WICKETGATE_PYTHON names /nowhere/python3, which is not an executable file.\n",
    )


def test_no_python_is_one_sentence_with_the_cure(bare: Path) -> None:
    done = shell("find_python() { return 1; }; ensure_python", bare)
    assert done.returncode == 1
    assert done.stderr.startswith("No Python 3.12 or newer")
    assert "WICKETGATE_PYTHON" in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_programs_are_named_once_with_the_cure(bare: Path) -> None:
    done = shell("ensure_packages run", bare)
    assert done.returncode == 1
    assert done.stderr == (
        "Missing system packages: bubblewrap curl nftables tmux - install them"
        " (as root: apt-get install bubblewrap curl nftables tmux ), then run this again.\n"
    )


def test_nothing_is_installed_when_all_is_there(bare: Path) -> None:
    for program in ("bwrap", "nft", "tmux", "curl"):
        (bare / program).symlink_to("/bin/true")
    done = shell("apt_install() { echo installed; }; ensure_packages run", bare)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_line_of_the_list_has_its_four_parts() -> None:
    for line in (ROOT / "scripts" / "system-packages.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            probe, package, group, purpose = line.split(maxsplit=3)
            assert group in ("run", "test", "bench")
            assert probe
            assert package
            assert purpose


@pytest.mark.parametrize(
    "script", sorted(path.name for path in (ROOT / "scripts").iterdir() if os.access(path, os.X_OK) and path.is_file())
)
def test_scripts_are_plain_posix_shell(script: str) -> None:
    text = (ROOT / "scripts" / script).read_text()
    assert text.startswith("#!/bin/sh\n")
    assert subprocess.run(["/bin/sh", "-n", ROOT / "scripts" / script], check=False).returncode == 0
