"""One engine, one image, one stack for all tests in here: making them is what takes the time."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.engine import Engine, debian_tree, start_engine
from tests.compose.image import build, copy_as_another, copy_project, download_wheels, import_base
from tests.compose.stack import Stack, prepare


@pytest.fixture(scope="session")
def engine_work() -> Iterator[Path]:
    """A directory for an engine's data: not below /tmp, which may be a tmpfs, on which overlays cannot be stacked."""
    work = Path(tempfile.mkdtemp(prefix="wicketgate-engine-", dir="/var/tmp"))
    yield work
    shutil.rmtree(work, ignore_errors=True)


@pytest.fixture(scope="session")
def builds(engine_work: Path) -> list[dict[str, Any]]:
    """The image, built the documented way, and once more without a cache from another copy of the project."""
    project, again = engine_work / "project", engine_work / "again"
    project.mkdir()
    copy_project(project)
    download_wheels(project / "deploy/wheels")
    copy_as_another(project, again)
    with start_engine(debian_tree("engine"), engine_work, project, network=True) as builder:
        import_base(builder, debian_tree("base"))
        return [build(builder), build(builder, "--no-cache", directory="/run/work/again")]


@pytest.fixture(scope="session")
def engine(engine_work: Path, builds: list[dict[str, Any]]) -> Iterator[Engine]:
    """An engine on no network but its own, which has the image."""
    assert builds
    with start_engine(debian_tree("engine"), engine_work, engine_work / "project") as running:
        yield running


@pytest.fixture(scope="session")
def standing_stack(engine: Engine) -> Iterator[Stack]:
    """The stack of compose.yaml with a service to reach; down at the end, whatever happened."""
    prepare(engine.work)
    made = Stack(engine=engine)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def stack(standing_stack: Stack) -> Stack:
    """The stack, up and healthy. A test may break it: what is missing or ill is started again for the next one."""
    standing_stack.up()
    return standing_stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need root, and namespaces."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.root_only)
