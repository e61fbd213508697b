"""Start bubblewrap with a plan: the plan as arguments, the files that they name, and a child that is told all of it."""

import contextlib
import os
import socket
from collections.abc import Mapping

import msgspec

from sandbox import supplies
from sandbox.argv import arguments
from sandbox.births import FIRST_OTHER, Birth, signals_to_reset
from sandbox.forking import Here, Starter
from sandbox.plan import Plan


class Launched(msgspec.Struct, kw_only=True):
    """A started sandbox: bubblewrap's pid, and the pipe on which it reports (JSON documents, until it ends).

    A held one executes its command at a byte to `release_fd`. `mounting` is readable when bubblewrap has made the last
    generated file, which is near the end of its mounts, or has ended; None where it makes none.
    """

    pid: int
    status_fd: int
    release_fd: int = -1
    mounting: socket.socket | None = None

    def close(self) -> None:
        """Close what is open of it."""
        self.close_mounting()
        for fd in (self.status_fd, self.release_fd):
            if fd >= 0:
                os.close(fd)

    def close_mounting(self) -> None:
        """Nobody waits for the mounts any more."""
        if self.mounting is not None:
            self.mounting.close()
            self.mounting = None


def launch(  # noqa: PLR0913  one parameter a part
    plan: Plan,
    *,
    bwrap_fd: int,
    seccomp: bytes,
    stdio: Mapping[int, int] | None = None,
    held: bool = False,
    network: int | None = None,
    starter: Starter | None = None,
    urgent: bool = True,
) -> Launched:
    """Start the plan. `held`: stop when everything is mounted and given up, before the command.

    The calling thread must stay alive. `stdio` maps 0, 1 and 2 (and for a parked sandbox further numbers below 10) to
    descriptors of the caller; of the first three, what it does not name is inherited. `network`: a namespace for the
    sandbox, None where it gets one of its own or the starter is in it. `urgent`: as for a `Birth`.
    """
    with contextlib.ExitStack() as files, contextlib.ExitStack() as ours:
        supplied: dict[int, int] = {}

        def supply(fd: int) -> int:
            files.callback(os.close, fd)
            number = FIRST_OTHER + len(supplied)
            supplied[number] = fd
            return number

        status_fd, report_fd = os.pipe2(os.O_CLOEXEC)
        ours.callback(os.close, status_fd)
        words = ["--json-status-fd", str(supply(report_fd))]
        release_fd = -1
        if held:
            block, release_fd = supplies.hold()
            ours.callback(os.close, release_fd)
            words = ["--block-fd", str(supply(block)), *words]
        filtered = supply(supplies.file(seccomp))
        contents: list[bytes] = []

        def later(content: bytes) -> int:
            contents.append(content)
            return FIRST_OTHER + len(supplied) + len(contents) - 1

        inner = arguments(plan, later, seccomp=filtered)
        mounting = supplies.supply_all(contents, supply, told=held)
        if mounting is not None:
            ours.callback(mounting.close)
        # By descriptor: neither the variables nor the mounts show in /proc/PID/cmdline.
        packed = supply(supplies.file(b"".join(os.fsencode(word) + b"\0" for word in inner)))
        birth = Birth(
            argv=("bwrap", *words, "--args", str(packed), "--", *plan.argv),
            bwrap_fd=bwrap_fd,
            descriptors={**(stdio or {}), **supplied},
            network=-1 if network is None else network,
            reset=signals_to_reset(),
            rlimits=plan.rlimits,
            urgent=urgent,
        )
        pid = (starter or Here()).bear(birth)
        ours.pop_all()
    return Launched(pid=pid, status_fd=status_fd, release_fd=release_fd, mounting=mounting)
