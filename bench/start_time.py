"""How long a sandbox takes to run `true`: bare, under bubblewrap with the usual mounts, by `wicketgate run`, by a peer.

`wicketgate run` starts an interpreter, a runner and a sandbox for the one command.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import sandbox_runtime
from bench.measures import Sample
from bench.origins import NAME, Origins
from bench.results import Row

BWRAP: Final = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--"),
)
TRUE: Final = "/usr/bin/true"


def commands(workspace: Path, origins: Origins) -> dict[str, Sequence[str]]:
    run = [sys.executable, "-m", "wicketgate", "run", "--workspace", str(workspace)]
    found: dict[str, Sequence[str]] = {
        "bare": [TRUE],
        "bwrap": [*BWRAP, TRUE],
        "python -c pass": [sys.executable, "-c", "pass"],
        "wicketgate run": [*run, "--", TRUE],
        "wicketgate run, with a cable": [*run, "--allow", f"{NAME}:{origins.https}", "--", TRUE],
    }
    if sandbox_runtime.installed() is not None:
        found["sandbox-runtime"] = sandbox_runtime.command_of_a_start(workspace.parent)
    return found


def _children_cpu() -> float:
    """CPU seconds of all that was started and waited for, grandchildren that were waited for included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_starts(workspace: Path, origins: Origins, times: int) -> dict[str, Row]:
    """Rows in microseconds, interleaved: every command once a turn."""
    asked = commands(workspace, origins)
    rows = {name: Row() for name in asked}
    for _ in range(times):
        for name, command in asked.items():
            row = rows[name]
            if row.failure:
                continue
            spent = _children_cpu()
            begin = time.perf_counter()
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            taken = time.perf_counter() - begin
            if done.returncode == 0:
                row.samples.append(Sample(value=taken * 1e6, cpu=(_children_cpu() - spent) * 1e6))
            else:
                row.failure = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    return rows
