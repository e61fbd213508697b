"""What a process holds for a moment does not stay its own."""

import subprocess
import sys

# A large block that goes back raises the C library's bound (mallopt(3)); then two that are exchanged lie in the heap.
EXCHANGED = """
import sys
from pathlib import Path
from wicketgate.memory import keep_large_apart

if sys.argv[1] == "apart":
    keep_large_apart()

def heap():
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.endswith("[heap]"))
    return next(int(line.split()[1]) for line in lines[begin:] if line.startswith("Rss:"))

before = heap()
block = bytearray(4 << 20)
for _ in range(3):
    block = bytearray(4 << 20)
print(heap() - before)
"""


def grown(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", EXCHANGED, how], capture_output=True, text=True, check=True)
    return int(done.stdout)  # KB


def test_large_blocks_leave_nothing_in_the_heap() -> None:
    assert grown("as it is") > 3000, "this C library keeps them apart by itself: the whole is not needed here"
    assert grown("apart") < 500
