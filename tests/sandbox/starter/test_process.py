"""What the process that forks for a runner loads: no library, and nothing that a launch does not need."""

import subprocess
import sys

from tests.tree import ROOT

NOT_LOADED = {"asyncio", "dataclasses", "inspect", "msgspec", "sandbox.plan", "sandbox.launch", "ssl", "subprocess"}


def test_it_loads_no_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sandbox.starter import process;"
        " print(*sys.modules); assert not any('site-packages' in path for path in sys.path)"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    loaded = set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    assert "sandbox.execution" in loaded
    assert not loaded & NOT_LOADED
