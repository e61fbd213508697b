"""A short soak: after every kind of start and end that there is, both daemons hold what they held before."""

import pytest

from bench.churn import ACTS, Field
from bench.soak import soak

pytestmark = [pytest.mark.live, pytest.mark.alone]
CYCLES = 12


async def leave_open(place: Field) -> None:
    async with place.granted() as authority:
        await place.runner.open_session(authority)


async def test_nothing_grows_with_churn() -> None:
    seen = await soak(cycles=CYCLES)
    assert len(seen.times) == CYCLES
    assert seen.acts.total() == CYCLES * len(ACTS)
    judged = {one.name for one in seen.verdicts() if one.allowed is not None}
    assert {"broker: threads", "runner 2: resident MB", "processes", "namespaces: net"} <= judged
    assert seen.troubles == []


async def test_a_sandbox_that_stays_each_time_is_called_a_leak() -> None:
    # Several at once: the growth stands out from what is only just being made or removed at a sample.
    seen = await soak(cycles=CYCLES, patience=0.0, acts=[leave_open] * 4)
    leaking = {one.name for one in seen.verdicts() if one.leaks}
    assert {"processes", "namespaces: net", "namespaces: pid"} <= leaking
    assert seen.unquiet >= CYCLES - 1
