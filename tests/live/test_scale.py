"""Some tens of live sandboxes with grants at once: each reaches what it may under its own name, and nothing stays."""

import pytest

from bench.scale import measure

pytestmark = pytest.mark.live
FEW, MANY = 2, 40


async def test_many_live_sandboxes() -> None:
    result = await measure(
        [FEW, MANY], asks=1
    )  # raises where a request is not on record under its own session and grant
    assert [point["count"] for point in result["points"]] == [FEW, MANY]
    assert result["left"] == []
    few, many = result["points"]
    for what in ("broker_mb", "runner_mb"):
        assert (many[what] - few[what]) / (MANY - FEW) < 1, what
    assert (many["sandboxes_mb"] - few["sandboxes_mb"]) / (MANY - FEW) < 3
