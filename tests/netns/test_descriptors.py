"""What a program inherits: the descriptors that are named, in one step or where the kernel knows no such step."""

import os
import sys
from pathlib import Path

import pytest

from netns import kernel

MANY = 50
TELL = "import os; print(*sorted(int(fd) for fd in os.listdir('/proc/self/fd')))"


@pytest.mark.parametrize("call", [kernel._SYS_CLOSE_RANGE, 0x7FFFFFFF], ids=["in one step", "an old kernel"])
def test_a_program_has_only_what_was_named(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_SYS_CLOSE_RANGE", call)
    told = tmp_path / "told"
    pid = os.fork()
    if pid == 0:
        out = os.open(told, os.O_WRONLY | os.O_CREAT, 0o600)
        opened = [os.dup2(out, 100 + number, inheritable=number % 2 == 0) for number in range(MANY)]
        os.dup2(out, 1)
        kernel.inherit_only({opened[6], opened[7]})
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", TELL])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    seen = set(map(int, told.read_text().split()))
    assert seen - {3} == {0, 1, 2, 106, 107}, "3 is the listing itself"
