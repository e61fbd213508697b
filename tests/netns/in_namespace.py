"""Run as uid 0 of a user namespace of one's own: what a bridge looks like to the system's own tools, and what it costs.

`python -m tests.netns.in_namespace describe | time N | leave N` prints one JSON document.
"""

import errno
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netns.bridge import Bridge, build_bridge

AT_ONCE = 32  # network namespaces, so sixteen bridges
PATIENCE = 20.0  # seconds


def tool(*words: str, namespace: int) -> str:
    """Run a program in a network namespace and return what it prints."""

    def enter() -> None:
        os.setns(namespace, os.CLONE_NEWNET)

    done = subprocess.run(words, check=True, capture_output=True, text=True, preexec_fn=enter)
    return done.stdout


def describe() -> dict[str, Any]:
    with build_bridge() as bridge:
        found: dict[str, Any] = {"ipv6": bridge.ipv6, "capture_port": bridge.listeners.capture_port}
        for name, fd in (("bridge", bridge.bridge_fd), ("sandbox", bridge.sandbox_fd)):
            found[name] = {
                "rules": tool("nft", "list", "ruleset", namespace=fd),
                "addresses": json.loads(tool("ip", "-json", "address", namespace=fd)),
                "routes": tool("ip", "-o", "route", "show", "table", "all", namespace=fd)
                + tool("ip", "-o", "-6", "route", "show", "table", "all", namespace=fd),
                "policy": tool("ip", "rule", namespace=fd) + tool("ip", "-6", "rule", namespace=fd),
                "neighbours": tool("ip", "neighbour", namespace=fd) + tool("ip", "-6", "neighbour", namespace=fd),
            }
        return found


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds to build one, each dropped again at once."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        bridge = build_bridge()
        times.append((time.perf_counter() - begin) * 1000)
        bridge.close()
    return {"median_ms": statistics.median(times), "rounds": rounds}


def leave(rounds: int) -> dict[str, Any]:
    """Build and drop many where only a few may exist at once: what stays behind would soon be refused (ENOSPC).

    The kernel tears a namespace down in a work queue of its own, so a full house is waited for, but not for long.
    """
    before = len(os.listdir("/proc/self/fd"))
    Path("/proc/sys/user/max_net_namespaces").write_text(str(AT_ONCE))
    for _ in range(rounds):
        _build_when_there_is_room().close()
    # The thread itself still is in the last sandbox's namespace, whose peer has gone and taken the veth pair along.
    deadline = time.monotonic() + PATIENCE
    while (links := [name for _, name in socket.if_nameindex()]) != ["lo"] and time.monotonic() < deadline:
        time.sleep(0.01)
    return {"descriptors": len(os.listdir("/proc/self/fd")) - before, "links": links}


def _build_when_there_is_room() -> Bridge:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return build_bridge()
        except OSError as error:
            if error.errno != errno.ENOSPC or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def main() -> None:
    commands: dict[str, Callable[[], dict[str, Any]]] = {
        "describe": describe,
        "time": lambda: measure(int(sys.argv[2])),
        "leave": lambda: leave(int(sys.argv[2])),
    }
    print(json.dumps(commands[sys.argv[1]]()))


if __name__ == "__main__":
    main()
