#!/usr/bin/env python3
"""Makes the seccomp profile of the runner's container: the engine's default and the calls that sandboxes are made of.

usage: generate.py [--check]      (--check: write nothing, fail where runner.json is not what would be written)

The result depends on default.toml and on the table below and on nothing else. It must never drop a refusal of the
default: a payload inside a sandbox has a stricter filter of its own, but the runner itself has only this one.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
PROFILE: Final = HERE / "runner.json"

# call → why the runner or bubblewrap, in a user namespace of its own, cannot do without it.
ADDED: Final = {
    "clone": "bubblewrap makes a sandbox's first process in new namespaces by this call",
    "mount": "a sandbox sees only what is mounted for it",
    "pivot_root": "and nothing of the container's own root",
    "sethostname": "each sandbox has a name of its own",
    "setns": "the runner opens listeners in a bridge, and later calls of a session join its sandbox",
    "umount2": "what the old root held is let go",
    "unshare": "the runner enters its user namespace, and makes bridges, by this call",
}


def read_default() -> dict[str, Any]:
    """The facts about the engine's default."""
    return tomllib.loads((HERE / "default.toml").read_text(encoding="utf-8"))


def profile(default: dict[str, Any]) -> dict[str, Any]:
    """The whole profile, in the engine's own format."""
    rules = [_rule(rule) for rule in default["rule"]]
    # The default's rule with a mask for clone is subsumed; two rules for one call would both be installed.
    rules = [rule for rule in rules if not set(rule["names"]) <= set(ADDED)]
    rules.append({"names": sorted(ADDED), "action": "SCMP_ACT_ALLOW"})
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": default["errno"],
        "archMap": [
            {"architecture": name, "subArchitectures": others} for name, others in default["architectures"].items()
        ],
        "syscalls": rules,
    }


def _rule(fact: dict[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": sorted(fact["names"].split()), "action": fact.get("action", "SCMP_ACT_ALLOW")}
    if "errno" in fact:
        rule["errnoRet"] = fact["errno"]
    if "arguments" in fact:
        rule["args"] = [_argument(*one) for one in fact["arguments"]]
    includes = {key: fact[name] for name, key in (("machines", "arches"), ("kernel", "minKernel")) if name in fact}
    return rule | ({"includes": includes} if includes else {})


def _argument(index: int, comparison: str, value: int) -> dict[str, Any]:
    # For a masked comparison the value is the mask, and the second value what must be left: nothing.
    return {"index": index, "value": value, "valueTwo": 0, "op": comparison}


def text() -> str:
    """The file's content."""
    return json.dumps(profile(read_default()), indent=1) + "\n"


def main(words: list[str]) -> int:
    wanted = text()
    if words == ["--check"]:
        if PROFILE.exists() and PROFILE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PROFILE} is not what {Path(__file__).name} makes; run it without --check.", file=sys.stderr)
        return 1
    if words:
        print("usage: generate.py [--check]", file=sys.stderr)
        return 2
    PROFILE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
