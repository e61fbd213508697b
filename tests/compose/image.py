"""The container image as the tests build it: from the committed and new files, on a tree of Debian, offline for Python.

The wheels come through this machine's own pip, checked against the lock, because the build has none of its settings.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from tests.compose.engine import Engine, EngineError, debian_tree
from tests.tree import ROOT, project_files

BASE: Final = "wicketgate-test-base:trixie"
IMAGE: Final = "wicketgate:local"
PYTHON: Final = "3.13"  # trixie's
BUILD_PACKAGES: Final = ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")


def copy_project(target: Path) -> None:
    """The tree that is tested, as a checkout has it."""
    for path in project_files():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, place, follow_symlinks=False)


def download_wheels(target: Path) -> None:
    """The locked packages for trixie's Python, and those that the wheel is built with.

    Kept beside the trees of Debian from one run to the next; the build checks each against the lock again.
    """
    select = [str(ROOT / "deploy/select-requirements"), str(ROOT / "requirements/dev.lock"), *BUILD_PACKAGES]
    build_lock = subprocess.run(select, check=True, stdout=subprocess.PIPE).stdout
    runtime_lock = (ROOT / "requirements/runtime.lock").read_bytes()
    name = hashlib.sha256(build_lock + runtime_lock).hexdigest()[:16]
    kept = debian_tree("base").parent / f"wheels-{name}"
    if not kept.exists():
        unfinished = kept.with_suffix(f".{os.getpid()}")
        for number, lock in enumerate((build_lock, runtime_lock)):
            requirements = target.parent / f"wheels-{number}.lock"
            requirements.write_bytes(lock)
            pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--only-binary=:all:"]
            what = ["--python-version", PYTHON, "--require-hashes", "-r", str(requirements), "-d", str(unfinished)]
            subprocess.run([*pip, *what], check=True, stderr=subprocess.DEVNULL)
            requirements.unlink()
        unfinished.rename(kept)
    shutil.copytree(kept, target, dirs_exist_ok=True)


def import_base(engine: Engine, tree: Path) -> None:
    """Make the base image of a tree of Debian."""
    with subprocess.Popen(["tar", "-C", str(tree), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE) as packed:
        assert packed.stdout is not None
        enter = ["nsenter", "--target", str(engine.init), "--mount", "--pid", "--root", "--"]
        done = subprocess.run(
            [*enter, "/usr/bin/docker", "--host", "unix:///run/docker.sock", "import", "-", BASE],
            check=False,
            stdin=packed.stdout,
            capture_output=True,
        )
    if done.returncode or packed.returncode:
        raise EngineError(f"import of the base: {done.stderr.decode(errors='replace')}")


def build(engine: Engine, *options: str, directory: str = "/run/project") -> dict[str, Any]:
    """Build the image with Compose, as the documentation says, without the Python index; what the engine says of it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    arguments = ["--build-arg", f"BASE={BASE}", "--build-arg", "OFFLINE=yes", "--build-arg", f"VERSION={version}"]
    engine.compose("build", *arguments, *options, "broker", seconds=600, directory=directory)
    return dict(json.loads(engine.docker("image", "inspect", IMAGE))[0])


def copy_as_another(project: Path, target: Path) -> None:
    """The same tree as somebody else may have it: other times, and whoever may read may write, too."""
    shutil.copytree(project, target, symlinks=True, copy_function=shutil.copyfile)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() or os.access(project / path.relative_to(target), os.X_OK) else 0o666)
