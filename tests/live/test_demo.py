"""The demonstration works as it says, from a clean state, and leaves nothing in the temporary directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

pytestmark = [pytest.mark.live, pytest.mark.smoke]


def test_demo(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    environment = {**os.environ, "TMPDIR": "/tmp", "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{") and '"hash"' in line]
    verdicts = [(one["verdict"], one["authority"].partition(":")[0]) for one in records if one["kind"] == "decision"]
    assert verdicts == [
        ("allow", "api.origin.example"),
        ("deny", "other.origin.example"),
        ("deny", "other.origin.example"),
    ]
    assert "\nhello from the origin\n" in done.stdout
    assert '"reason":"host_not_allowed"' in done.stdout  # the refusal that the client could read
    place = next(word for word in done.stdout.split() if "/wicketgate-demo-" in word).split("/workspace")[0]
    assert not Path(place).exists()
