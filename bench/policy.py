"""The size of a policy: load time, memory and verdict time of 100,000 rules against 10, as ratios of one run.

`python -m bench.policy [--rules N] [--json]`. The goal (a verdict within 2x of ten rules) is printed, never asserted.
"""

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from dataclasses import dataclass
from typing import Literal

from broker.policy.authority import Authority, parse_authority
from broker.policy.decide import Facts, Stage, decide
from broker.policy.load import parse_policy
from broker.policy.rules import Policy

SMALL = 10
LARGE = 100_000
ROUNDS = 7
CALLS = 4000
GOAL = 2.0
BUDGET_MICROSECONDS = 6.0

type Shape = Literal["exact", "wildcard", "one host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A policy with what it cost: seconds to parse, bytes that stayed allocated."""

    policy: Policy
    seconds: float
    size: int


def make_text(count: int, shape: Shape) -> str:
    """A policy of `count` rules, each with methods and paths as a person writes them."""
    hosts = {"exact": "api{n}.example.com", "wildcard": "*.team{n}.example.com", "one host": "api.example.com"}[shape]
    rules = (
        f'[[rule]]\nname = "r{n}"\naction = "allow"\nhosts = ["{hosts.format(n=n)}"]\nports = [443]\n'
        f'methods = ["GET", "POST"]\npaths = ["/v{n if shape == "one host" else 1}/**"]\n'
        for n in range(count)
    )
    return "version = 1\n[egress]\nenabled = true\n" + "".join(rules)


def load(text: str, *, weigh: bool = True) -> Loaded:
    """Parse once for the time and, to `weigh`, once more for the memory: tracing allocations slows parsing down."""
    started = time.perf_counter()
    policy = parse_policy(text, source="bench")
    seconds = time.perf_counter() - started
    if not weigh:
        return Loaded(policy=policy, seconds=seconds, size=0)
    gc.collect()
    tracemalloc.start()
    again = parse_policy(text, source="bench")
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del again
    return Loaded(policy=policy, seconds=seconds, size=size)


def questions(count: int, shape: Shape) -> dict[str, list[Facts]]:
    """Requests that are allowed and requests that no rule knows, spread over the whole policy."""
    chosen = [n * count // 10 for n in range(10)]
    hosts = {"exact": "api{n}.example.com", "wildcard": "a.b.team{n}.example.com", "one host": "api.example.com"}[shape]
    known = [(hosts.format(n=n), f"/v{n if shape == 'one host' else 1}/items/42") for n in chosen]
    return {
        "allow": [ask(parse(host), path) for host, path in known],
        "deny": [ask(parse(f"x{n}.unknown.example.net"), "/v1/items/42") for n in chosen],
    }


def parse(host: str) -> Authority:
    return parse_authority(host.encode(), default_port=443)


def ask(authority: Authority, path: str) -> Facts:
    return Facts(stage=Stage.REQUEST, scheme="https", authority=authority, method="GET", path=path)


def microseconds(policy: Policy, facts: list[Facts]) -> float:
    """The time of one verdict."""
    started = time.perf_counter()
    for _ in range(CALLS // len(facts)):
        for one in facts:
            decide(one, policy, None, 0.0)
    return (time.perf_counter() - started) / (CALLS // len(facts) * len(facts)) * 1e6


def compare(shape: Shape, large: int, *, weigh: bool = True) -> dict[str, object]:
    """Interleave small and large so that a slow moment of the machine meets both; report medians and ratios."""
    small_policy, large_policy = load(make_text(SMALL, shape), weigh=weigh), load(make_text(large, shape), weigh=weigh)
    row: dict[str, object] = {
        "shape": shape,
        "rules": large,
        "load_s": round(large_policy.seconds, 3),
        "load_us_per_rule": round(large_policy.seconds / large * 1e6, 1),
        "memory_mb": round(large_policy.size / 1e6, 1),
        "bytes_per_rule": round(large_policy.size / large),
    }
    gc.collect()
    gc.freeze()
    asked = {kind: (questions(SMALL, shape)[kind], questions(large, shape)[kind]) for kind in ("allow", "deny")}
    for kind, (few, many) in asked.items():
        times = [
            (microseconds(small_policy.policy, few), microseconds(large_policy.policy, many)) for _ in range(ROUNDS)
        ]
        row[f"{kind}_us_10"] = round(statistics.median(one for one, _ in times), 2)
        row[f"{kind}_us_large"] = round(statistics.median(other for _, other in times), 2)
        row[f"{kind}_ratio"] = round(statistics.median(other / one for one, other in times), 2)
    gc.unfreeze()
    return row


def main() -> None:
    """Print a table, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=LARGE, help="rules of the large policy")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    rows = [compare(shape, options.rules) for shape in ("exact", "wildcard", "one host")]
    if options.json:
        print(json.dumps({"policy": rows, "goal_ratio": GOAL, "goal_us": BUDGET_MICROSECONDS}, indent=2))
        return
    for row in rows:
        print(
            f"{row['rules']} rules, {row['shape']}: loaded in {row['load_s']} s ({row['load_us_per_rule']} us a rule),",
            end=" ",
        )
        print(f"{row['memory_mb']} MB ({row['bytes_per_rule']} bytes a rule)")
        for kind in ("allow", "deny"):
            large, small, ratio = (row[f"{kind}_{key}"] for key in ("us_large", "us_10", "ratio"))
            print(f"  {kind}: {small} us with {SMALL} rules, {large} us here: {ratio}x (goal {GOAL:g}x)")


if __name__ == "__main__":
    main()
