"""What a keeper is told of a survey is the survey."""

import os

from sandbox.protect import Survey
from sandbox.protect.keeper import format_survey, parse_survey


def test_a_survey_stays_what_it_was() -> None:
    odd = os.fsdecode(b'a\xff\n"b')
    found = Survey(
        git_directories=(".git", odd),
        frozen=(f"{odd}/config",),
        absent=(".envrc",),
        complete=False,
        since=1 << 62,
        identities=frozenset({(odd, 1 << 63), (".git", 2)}),
        configurations=((f"{odd}/config", "[core]\n"),),
    )
    assert parse_survey(format_survey(found)) == found
    assert parse_survey(format_survey(Survey())) == Survey()
