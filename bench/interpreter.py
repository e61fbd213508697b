"""Which build of Python a run had, and how fast it is: an unoptimised build of the same version takes a third longer.

Whether a build is profile-guided can be read only where its configuration says so; Debian's packages are, and do not.
So a fixed loop is timed too, which tells builds apart whatever they say of themselves.
"""

import functools
import platform
import sys
import sysconfig
import time
from typing import Final

TURNS: Final = 100_000
ATTEMPTS: Final = 5


@functools.cache
def describe_python() -> str:
    """One sentence on the interpreter that runs this."""
    return f"{platform.python_version()}, {_build()}, a turn of a fixed loop takes {fixed_loop():.0f} ns"


def _build() -> str:
    if sys.base_prefix == "/usr":
        return "the distribution's build"
    optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "a profile-guided build" if optimised else "built without --enable-optimizations"


class _Counter:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count


def fixed_loop() -> float:
    """Nanoseconds of one turn (a call, an attribute, a dictionary, a slice of bytes), the best of some attempts."""
    best = float("inf")
    for _ in range(ATTEMPTS):
        counter, seen, data = _Counter(), {b"a": 1, b"b": 2}, b"ab" * 8
        begin = time.perf_counter_ns()
        for turn in range(TURNS):
            counter.add(seen.get(data[turn & 1 : (turn & 1) + 1], 0))
        best = min(best, (time.perf_counter_ns() - begin) / TURNS)
    return best
