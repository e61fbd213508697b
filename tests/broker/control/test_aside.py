"""A policy is parsed beside a loop that serves on, and nothing of how that is done stays behind."""

import asyncio
import gc
import sys

import pytest

from broker.control.aside import let_go, parse_aside
from broker.policy.problems import PolicyError


def text(rules: int) -> str:
    rule = '[[rule]]\nname = "r{n}"\naction = "allow"\nhosts = ["h{n}.example.com"]\n'
    return "version = 1\n" + "".join(rule.format(n=n) for n in range(rules))


async def turns_during(task: "asyncio.Task[object]") -> int:
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


def settings() -> tuple[object, ...]:
    return sys.getswitchinterval(), gc.get_threshold(), gc.isenabled()


async def test_the_loop_goes_on_while_a_policy_is_parsed() -> None:
    before = settings()
    task = asyncio.create_task(parse_aside(text(3000), "large"))
    assert await turns_during(task) > 200
    assert len(task.result().rules) == 3000
    assert settings() == before


@pytest.mark.parametrize("wrong", ["version = 2", "not a policy", text(1) + "unknown = 1"])
async def test_nothing_stays_behind_a_policy_that_is_refused(wrong: str) -> None:
    before = settings()
    with pytest.raises(PolicyError):
        await parse_aside(wrong, "wrong")
    assert settings() == before


async def test_a_former_policy_goes_in_pieces() -> None:
    former = [await parse_aside(text(5000), "former")]
    task = asyncio.create_task(let_go(former))
    assert await turns_during(task) >= 5
    assert former == []
