"""How many there may be at once, counted from the moment in which one begins."""

import pytest

from sandbox.errors import Code, LaunchError
from sandbox.room import Room


def test_those_that_are_being_started_count() -> None:
    room = Room(3, "boats are out", "Wait.")
    with room.for_one_more(1), room.for_one_more(1), pytest.raises(LaunchError) as refused, room.for_one_more(1):
        pass
    assert (refused.value.code, refused.value.cause) == (Code.TOO_MANY, "3 boats are out.")
    with room.for_one_more(2):
        pass


def test_one_that_could_not_be_started_takes_no_room() -> None:
    room = Room(1, "boats are out", "Wait.")
    for _ in range(3):
        with pytest.raises(OSError, match="sunk"), room.for_one_more(0):
            raise OSError("sunk")
