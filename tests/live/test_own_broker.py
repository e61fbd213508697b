"""A run's own broker before it is told to begin: it understands or not, makes nothing, and ends."""

import os
from pathlib import Path

import pytest

from wicketgate.brokered import start_broker
from wicketgate.rules import Words

pytestmark = pytest.mark.live


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_what_was_typed_is_understood() -> None:
    broker = start_broker(Words(allow=("a.example",)))
    pid = broker.pid
    try:
        assert broker.problem() is None
        assert os.getsid(pid) == pid
    finally:
        broker.stop()
    assert not is_there(pid)
    broker.stop()


def test_what_was_typed_means_nothing() -> None:
    broker = start_broker(Words(allow=("a..b",)))
    try:
        assert "empty label" in (broker.problem() or "")
    finally:
        broker.stop()


@pytest.mark.parametrize("words", [Words(policy=Path("/nonexistent/\udcff")), Words(allow=("a..b" * 20,) * 2000)])
def test_what_is_wrong_can_be_said_whatever_it_is(words: Words) -> None:
    broker = start_broker(words)
    try:
        assert 10 < len(broker.problem() or "") <= 60_000
    finally:
        broker.stop()


def test_it_ends_where_it_is_not_told_to_begin() -> None:
    broker = start_broker(Words(allow=("a.example",)))
    broker.connection.close()
    _, status = os.waitpid(broker.pid, 0)
    assert os.WIFEXITED(status)
