"""A payload cannot make whoever opens a file of the workspace wait (fcntl(2), F_SETLEASE)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.runners import serving_uid
from tests.live.runs import wicketgate

pytestmark = pytest.mark.live
LEASE = """
import fcntl, os, sys
for path in sys.argv[1:]:
    try:
        fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("leased")
    except OSError as error:
        print(error.errno)
"""


def test_no_file_is_leased(workspace: Path) -> None:
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    (workspace / "own").touch()
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{serving_uid()}:{serving_uid()}", str(workspace)], check=True)
    paths = [str(workspace / ".git" / "config"), str(workspace / "own")]
    options = ("--workspace", str(workspace))
    done = wicketgate(*options, "--", "/usr/bin/python3", "-I", "-c", LEASE, *paths)
    assert done.stdout == b"1\n1\n", done
    oracle = subprocess.run([sys.executable, "-c", LEASE, *paths], capture_output=True, check=True)
    assert oracle.stdout == b"leased\nleased\n", "without the filter the owner gets one"
