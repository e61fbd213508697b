"""Disks that are full and files that may not grow, for real: a small tmpfs, and a limit set by the kernel."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")

FILE_LIMIT = """
import json, resource, sys, time
from pathlib import Path
from broker.audit.errors import AuditUnavailable
from broker.audit.log import AuditLog, LogSettings
from tests.broker.audit.logs import decision, faults, verify
now = time.monotonic()
log = AuditLog.open(Path(sys.argv[1]), settings=LogSettings(monotonic=lambda: now))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
ids, cause = [], ""
while not cause:
    ids.append(log.append(decision()))
    try:
        log.flush()
    except AuditUnavailable as error:
        cause = str(error)
size = next(Path(sys.argv[1]).glob("*.jsonl")).stat().st_size
whole = next(Path(sys.argv[1]).glob("*.jsonl")).read_bytes().endswith(b"\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
now += 1
log.flush()
log.close()
text = next(Path(sys.argv[1]).glob("*.jsonl")).read_text()
print(json.dumps({"cause": cause, "whole": whole, "small": size <= 5000, "all": all(f'"{id_}"' in text for id_ in ids),
                  "faults": faults(verify(Path(sys.argv[1])))}))
"""


def run(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    story: dict[str, Any] = json.loads(done.stdout)
    return story


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[str, ...]:
    """The command that runs the scenario in namespaces of its own, and where it mounts."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces are not allowed here")
    return (*UNSHARE, sys.executable, "-m", "tests.broker.audit.full_disk", str(tmp_path / "disk"))


@pytest.mark.live
@pytest.mark.parametrize("policy", ["always", "interval", "never"])
def test_a_full_disk_stops_egress_and_breaks_nothing(small_disk: tuple[str, ...], policy: str) -> None:
    story = run(*small_disk, policy)
    assert story.pop("flushed") > 50
    assert story == {
        "cause": "the audit log cannot be written: No space left on device",
        "available": False,
        "all flushed are there": True,
        "torn while full": False,
        "refused while full": 5,
        "available again": True,
        "nothing is lost": True,
        "gap is told": 1,
        "faults": [],
    }


@pytest.mark.live
def test_a_disk_that_is_full_from_the_start(small_disk: tuple[str, ...]) -> None:
    story = run(*small_disk, "full")
    assert "No space left on device" in story["cause"]
    assert story["left"] == []


def test_a_write_that_is_cut_short_is_taken_back(tmp_path: Path) -> None:
    """RLIMIT_FSIZE lets the kernel take the first bytes of a write and refuse the rest, as a full disk does."""
    assert run(sys.executable, "-c", FILE_LIMIT, str(tmp_path / "audit")) == {
        "cause": "the audit log cannot be written: File too large",
        "whole": True,
        "small": True,
        "all": True,
        "faults": [],
    }
