from pathlib import Path

import pytest

from broker.audit.location import NoStateDirectory, audit_directory, default_state_dir


@pytest.mark.parametrize(
    ("environ", "euid", "expected"),
    [
        ({}, 0, "/var/lib/wicketgate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": "/s"}, 0, "/var/lib/wicketgate"),
        ({"HOME": "/home/u"}, 1000, "/home/u/.local/state/wicketgate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": "/s"}, 1000, "/s/wicketgate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": "relative"}, 1000, "/home/u/.local/state/wicketgate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": ""}, 1000, "/home/u/.local/state/wicketgate"),
        ({"XDG_STATE_HOME": "/s"}, 1000, "/s/wicketgate"),
    ],
)
def test_default_state_dir(environ: dict[str, str], euid: int, expected: str) -> None:
    assert default_state_dir(environ, euid) == Path(expected)


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "u", "XDG_STATE_HOME": "s"}])
def test_nowhere_to_go(environ: dict[str, str]) -> None:
    with pytest.raises(NoStateDirectory, match="--state-dir"):
        default_state_dir(environ, 1000)


def test_the_log_has_a_directory_of_its_own() -> None:
    assert audit_directory(Path("/s/wicketgate")) == Path("/s/wicketgate/audit")
