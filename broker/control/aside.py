"""Parse a policy, or carry one to another process, beside a loop that goes on serving: a large file takes seconds, and
whoever has a tunnel open must not notice. Reads nothing and decides nothing: what is a policy is
`broker.policy.document`'s business.
"""

import asyncio
import gc
import pickle  # only from the daemon to the workers that it has forked
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.policy.document import parse_policy
from broker.policy.load import local_machine
from broker.policy.rules import Policy

# A thread that computes gives way only when asked for so long, and the loop asks after every system call that it makes
# (sys.setswitchinterval): with the default of 5 ms it would do some two hundred of them a second.
_SWITCH_SECONDS: Final = 0.0002
# A full collection looks at every rule, while everybody waits. While there are ever more of them it finds nothing.
_NO_FULL_COLLECTION: Final = 1_000_000
_PIECE: Final = 1000


async def parse_aside(text: str, source: str) -> Policy:
    """`parse_policy` with this machine's presets. Raises `PolicyError`."""
    with _giving_way():
        return await asyncio.to_thread(parse_policy, text, source=source, machine=local_machine())


async def freeze_aside(policy: Policy) -> bytes:
    """A policy as bytes for `thaw_aside` in another process of this broker, which gets the same, index included."""
    with _giving_way():
        return await asyncio.to_thread(pickle.dumps, policy, pickle.HIGHEST_PROTOCOL)


async def thaw_aside(frozen: bytes) -> Policy:
    """The policy that `freeze_aside` of this broker's daemon made. Never for bytes from anywhere else."""
    with _giving_way():
        policy = await asyncio.to_thread(pickle.loads, frozen)
    if not isinstance(policy, Policy):
        raise TypeError("no policy")
    return policy


async def let_go(policies: list[Policy]) -> None:
    """Free policies that nobody else holds, in pieces: a hundred thousand rules at once would hold up the loop."""
    rules = [rule for policy in policies for rule in policy.rules]
    policies.clear()
    while rules:
        del rules[-_PIECE:]
        await asyncio.sleep(0)


@contextmanager
def _giving_way() -> Iterator[None]:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(thresholds[0], thresholds[1], _NO_FULL_COLLECTION)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
