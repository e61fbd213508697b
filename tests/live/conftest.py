"""What the live tests share: a directory that a sandbox can be shown, whoever runs the tests."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def workspace() -> Iterator[Path]:
    """An empty directory that every user can write: started as root, the payload is another one."""
    place = Path(tempfile.mkdtemp(prefix="workspace-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place, ignore_errors=True)
