"""Python code that takes long is ended in its own thread, and nothing is left behind."""

import sys
import time

import pytest

from broker.review.page.bounded import within


class Late(Exception):  # noqa: N818
    pass


def work() -> None:
    with within(0.1, Late()):
        while True:
            len("")


def test_what_takes_long_is_ended() -> None:
    begun = time.monotonic()
    with pytest.raises(Late):
        work()
    assert time.monotonic() - begun < 10
    assert sys.getprofile() is None


def test_what_is_quick_is_not() -> None:
    with within(60, Late()):
        assert sum(len(str(number)) for number in range(10)) == 10
    assert sys.getprofile() is None
