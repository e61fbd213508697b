"""Ends what a payload or a pasted text can make slow: pure Python, which the clock of the index does not stop."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

Profile = Callable[[FrameType, str, object], object]
_CALLS: Final = 64  # between two looks at the clock


@contextmanager
def within(seconds: float, late: Exception) -> Iterator[None]:
    """Raise `late` in this thread, out of the code inside, at one of its calls after so many seconds."""
    until = time.monotonic() + seconds
    left = _CALLS

    def look(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal left
        left -= 1
        if left > 0:
            return
        left = _CALLS
        if time.monotonic() > until:
            raise late

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
