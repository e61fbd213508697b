from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.audit.log import AuditLog


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def log(directory: Path) -> Iterator[AuditLog]:
    opened = AuditLog.open(directory)
    yield opened
    opened.close(sign=False)
