"""A sandbox's first process is told by more than its number, which the kernel gives to others when it has ended."""

import subprocess
import sys

import pytest

from tests.live.gate import PAYLOADS
from tests.tree import ROOT

pytestmark = pytest.mark.live


def test_who_has_the_number_of_a_first_process_that_has_ended_is_not_taken_for_it() -> None:
    """ns_last_pid (proc(5)) chooses the number here; a payload that forks all the time could arrive at it."""
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    payload = [sys.executable, "-c", (PAYLOADS / "number_again.py").read_text()]
    done = subprocess.run([*words, *payload], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nobody is found by a number that is used again\n"
