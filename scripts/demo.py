"""The demonstration: one sandboxed command, an allowed request, a denied one, no network at all, and the records of it.

It brings its own HTTPS origin and needs no internet. Everything goes through the command line that a user has; it must
not reach into the packages.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.origins.process import HttpsOrigin, start_https

ALLOWED: Final = "api.origin.example"
DENIED: Final = "other.origin.example"
SUMMARY: Final = re.compile(r"session (?P<session>\S+) in (?P<directory>/\S+)")
BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command in the sandbox, and whether it is meant to succeed."""

    title: str
    command: list[str]
    options: list[str]
    succeeds: bool


def say(text: str) -> None:
    print(f"\n{BOLD}{text}{PLAIN}", flush=True)


def steps(origin: HttpsOrigin) -> list[Step]:
    cable = [
        *("--allow", f"{ALLOWED}:{origin.https}"),
        *("--resolve", f"{ALLOWED}:{origin.https}:{origin.address}"),
        *("--cacert", str(origin.cacert)),
        *("--private", f"{origin.address}/32"),
    ]
    fetch = ["curl", "-sS", "--max-time", "10", "--fail-with-body"]
    return [
        Step(
            title="No network by default: the sandbox has its own loopback interface and nothing else.",
            command=["sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1; echo 'routes:'; tail -n +2 /proc/net/route"],
            options=[],
            succeeds=True,
        ),
        Step(
            title=f"Without a cable even an allowed-looking request fails: https://{ALLOWED}",
            command=[*fetch, f"https://{ALLOWED}:{origin.https}/"],
            options=[],
            succeeds=False,
        ),
        Step(
            title=f"One cable when allowed: --allow {ALLOWED}:{origin.https}. curl knows nothing of a proxy.",
            command=[*fetch, f"https://{ALLOWED}:{origin.https}/"],
            options=cable,
            succeeds=True,
        ),
        Step(
            title=f"On the same cable, a host that is not allowed: https://{DENIED}",
            command=[*fetch, f"https://{DENIED}:{origin.https}/"],
            options=cable,
            succeeds=False,
        ),
        Step(
            title="And a plain HTTP request that is denied says why.",
            command=[*fetch, f"http://{DENIED}:{origin.http}/"],
            options=cable,
            succeeds=False,
        ),
    ]


def perform(step: Step, where: Path) -> tuple[bool, list[dict[str, Any]]]:
    """Run one step, print what it prints, and give whether it ended as meant with the records it points to."""
    say(step.title)
    command = [sys.executable, "-m", "wicketgate", "run", "--workspace", str(where), *step.options, "--", *step.command]
    print(f"{DIM}$ {shlex.join(['wicketgate', *command[3:]])}{PLAIN}", flush=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    print(done.stdout, end="")
    print(done.stderr, end="", flush=True)
    print(f"{DIM}exit code {done.returncode}{PLAIN}", flush=True)
    return (done.returncode == 0) == step.succeeds, records(done.stderr)


def records(messages: str) -> list[dict[str, Any]]:
    """What the audit log says of the run whose last line names session and log, oldest first."""
    told = SUMMARY.search(messages)
    if told is None:
        return []
    search = [sys.executable, "-m", "wicketgate", "audit", "search", "--session", told["session"], "--json"]
    state = str(Path(told["directory"]).parent)
    done = subprocess.run([*search, "--state-dir", state], check=True, capture_output=True, text=True)
    page = json.loads(done.stdout)
    return [one for one in reversed(page["records"]) if one["kind"] in ("decision", "close")]


def show(found: list[dict[str, Any]]) -> None:
    print(f"{BOLD}The audit log says of it:{PLAIN}")
    for record in found:
        print(json.dumps(record, ensure_ascii=False))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="wicketgate-demo-") as place:
        # Started as root, the product drops to an account of its own, which must reach workspace and certificate.
        Path(place).chmod(0o755)
        directory, workspace = Path(place) / "origin", Path(place) / "workspace"
        directory.mkdir()
        workspace.mkdir()
        os.environ["XDG_STATE_HOME"] = str(Path(place) / "state")
        say("Starting an HTTPS origin of our own ...")
        with start_https(directory, names=(ALLOWED, DENIED)) as origin:
            print(f"It serves on {origin.address}, ports {origin.https} (HTTPS) and {origin.http} (HTTP).")
            as_meant = True
            for step in steps(origin):
                fine, found = perform(step, workspace)
                as_meant = as_meant and fine
                if step.options:
                    as_meant = as_meant and bool(found)
                    show(found)
    say("Everything went as it should." if as_meant else "Something did not go as it should (see above).")
    return 0 if as_meant else 1


if __name__ == "__main__":
    raise SystemExit(main())
