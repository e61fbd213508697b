"""What bubblewrap and its child are about: whether they have mounted everything, wait, or have ended."""

import os
import select
import signal
import time
from typing import Final

from sandbox.errors import AGAIN, Code, LaunchError
from sandbox.launch import Launched
from sandbox.supervise import children, read_process

HOLD_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.0002
_TRY: Final = "`wicketgate doctor` tries each step."


def wait_held(launched: Launched) -> int:
    """Wait until bubblewrap's child has mounted everything, given up all rights and waits; its pid."""
    deadline = time.monotonic() + HOLD_SECONDS
    if launched.mounting is not None:
        poll = select.poll()
        poll.register(launched.mounting, select.POLLIN)
        poll.poll(HOLD_SECONDS * 1000)
        launched.close_mounting()
    while True:
        found = find_held(launched)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise LaunchError(Code.SANDBOX_FAILED, f"bubblewrap was not ready within {HOLD_SECONDS:g} s.", AGAIN)
        time.sleep(POLL_SECONDS)


def find_held(launched: Launched) -> int | None:
    """As `wait_held`, without waiting: None where it is not so far. Raises LaunchError."""
    found = children(launched.pid)
    if found and _has_no_capabilities(found[0]):
        return found[0]
    if os.waitid(os.P_PID, launched.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        raise LaunchError(Code.SANDBOX_FAILED, "bubblewrap could not build the sandbox.", _TRY)
    return None


def find_waiting(launched: Launched, init: int) -> int | None:
    """The program of a parked one after its `begin`, once the filter holds for it; its pid. Raises LaunchError."""
    begun = children(init)
    if begun and _field(_status(begun[0]), "Seccomp") == "2":
        return begun[0]
    if not _lives_on(launched.pid):
        raise LaunchError(Code.SANDBOX_FAILED, "bubblewrap ended before the sandbox was parked.", AGAIN)
    return None


def is_waiting(launched: Launched, init: int, program: int) -> bool:
    """Whether both of bubblewrap's processes and the waiting program are there, and none is about to end."""
    return all(map(_lives_on, (launched.pid, init, program))) and children(init) == [program]


def _has_no_capabilities(pid: int) -> bool:
    """bubblewrap's child drops them when the last mount is made, and asks to be let go right after that."""
    effective = _field(_status(pid), "CapEff")
    return effective != "" and int(effective, 16) == 0


def _lives_on(pid: int) -> bool:
    """Whether a process is neither dead nor about to be: SIGKILL stays pending until it takes effect (proc(5))."""
    status = _status(pid)
    killed = any(int(_field(status, name) or "0", 16) >> (signal.SIGKILL - 1) & 1 for name in ("SigPnd", "ShdPnd"))
    return _field(status, "State") not in {"", "Z", "X"} and not killed


def _status(pid: int) -> str:
    """A process's status file; empty where it is gone."""
    return read_process(f"{pid}/status").decode("ascii", "replace")


def _field(status: str, name: str) -> str:
    return status.partition(f"\n{name}:")[2].lstrip().partition("\n")[0].partition(" ")[0]
