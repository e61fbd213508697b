"""The causes of refusals, as a table; and that every answer there can be is a sentence with a cure."""

import errno
import itertools
import tomllib
from typing import Any

import pytest

from sandbox.doctor.causes import Attempt, Cause, Facts, Step, explain
from tests.tree import ROOT

CASES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/cases/doctor_causes.toml").read_text())["case"]


def facts_of(given: dict[str, Any]) -> Facts:
    return Facts(**{**given, "masked": tuple(given.get("masked", ()))})


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_cause(case: dict[str, Any]) -> None:
    attempt = Attempt(
        step=Step(case["step"]),
        error=getattr(errno, case["error"]),
        reached=case.get("reached"),
        label=case.get("label", ""),
    )
    cause = explain(attempt, facts_of(case.get("facts", {})))
    assert cause.layer == case["layer"], cause
    assert case["sentence"] in cause.sentence
    assert case["cure"] in cause.cure


def test_a_cure_is_only_given_for_a_layer_that_was_seen() -> None:
    """Whatever is refused with whatever error: on a host without restrictions no layer but the kernel is blamed."""
    errors = sorted(errno.errorcode)
    for step, error, reached in itertools.product(Step, errors, (None, True, False)):
        cause = explain(Attempt(step=step, error=error, reached=reached), Facts())
        assert isinstance(cause, Cause)
        assert cause.sentence.endswith((".", "gets none."))
        assert cause.cure
        assert cause.layer in {"kernel", "sysctl", "procfs"}, (step, error, cause)
        if cause.layer == "sysctl":
            assert error in {errno.ENOSPC, errno.EUSERS}
        if cause.layer == "procfs":
            assert (step, error) == (Step.PROCESSES, errno.EPERM)
