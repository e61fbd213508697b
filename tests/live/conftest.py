"""What live tests share: a directory that a sandbox can be shown, whoever runs the tests; a runner and its client."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.live.runners import Daemon, daemon
from wicketgate.runner.client import Runner


@pytest.fixture
def workspace() -> Iterator[Path]:
    """An empty directory that every user can write: started as root, the payload is another one."""
    place = Path(tempfile.mkdtemp(prefix="workspace-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    """A runner as its defaults make it, one for each module. A module that needs another one has its own `served`."""
    with daemon() as made:
        yield made


@pytest.fixture
async def runner(served: Daemon) -> AsyncIterator[Runner]:
    """A client of the module's runner."""
    async with served.client() as client:
        yield client
