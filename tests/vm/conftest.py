"""One virtual machine for all tests in here."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compose.engine import debian_tree
from tests.compose.image import PYTHON, copy_project, download_wheels
from tests.tree import ROOT
from tests.vm.machine import Machine, make_machine, start_machine


class Rack:
    """Keeps one machine running: a new one takes the place of one that has gone, so that a crash costs one test."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._project = work / "project"
        self._project.mkdir()
        copy_project(self._project)
        install_packages(self._project / "site", work)
        compile_all(self._project)
        self._made = make_machine()
        self._running = ExitStack()
        self._machine: Machine | None = None

    def machine(self) -> Machine:
        if self._machine is None or self._machine.has_gone():
            self.stop()
            self._machine = self._running.enter_context(start_machine(self._made, self._project, self._work))
        return self._machine

    def stop(self) -> None:
        self._running.close()


@pytest.fixture(scope="session")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    rack = Rack(tmp_path_factory.mktemp("vm"))
    yield rack
    rack.stop()


@pytest.fixture
def vm(rack: Rack) -> Machine:
    """A machine with Debian's kernel; the project is in /project, and Python there finds the locked packages."""
    return rack.machine()


def install_packages(target: Path, work: Path) -> None:
    """Unpack the locked packages for the machine's Python."""
    wheels = work / "wheels"
    download_wheels(wheels)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-index", "--no-compile"]
    choice = ["--python-version", PYTHON, "--only-binary=:all:", "--find-links", str(wheels), "--target", str(target)]
    lock = ["--require-hashes", "-r", str(ROOT / "requirements/runtime.lock")]
    subprocess.run([*pip, *choice, *lock], check=True)
    shutil.rmtree(wheels)


def compile_all(project: Path) -> None:
    """Compile with the machine's own Python, but at this machine's speed: in there each start would do it again."""
    script = """
        mount --bind "$1" "$2/mnt" &&
        exec chroot "$2" /usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash -s /mnt -p /project /mnt
    """
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(project), str(debian_tree("kernel"))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need root, to make the machine's disk."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.root_only)
