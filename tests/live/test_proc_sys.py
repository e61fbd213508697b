"""The kernel's settings are read-only inside, those of the sandbox's own namespaces too."""

import os
import subprocess

import pytest

from tests.live.runs import inside
from wicketgate.runner.client import Call, Runner

pytestmark = pytest.mark.live
WRITES = """
find /proc/sys -type f -writable
(: >/proc/sys/kernel/msgmax) 2>/dev/null && echo wrote
cat /proc/sys/kernel/ostype
"""
BARE = ("bwrap", "--unshare-all", "--uid", "1000", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")


def test_nothing_can_be_written_there() -> None:
    assert inside(WRITES) == "Linux\n"


async def test_nor_by_what_a_runner_starts(runner: Runner) -> None:
    assert (await runner.run(Call(bash=WRITES))).stdout == b"Linux\n"
    async with runner.session() as session:
        assert (await runner.run_in(session.id, Call(bash=WRITES))).stdout == b"Linux\n"


def test_without_the_mount_it_could() -> None:
    drop = (
        ("setpriv", "--reuid=64321", "--regid=64321", "--clear-groups", "--inh-caps=-all") if os.geteuid() == 0 else ()
    )
    done = subprocess.run([*drop, *BARE, "sh", "-c", WRITES], capture_output=True, text=True, check=False)
    assert "/proc/sys/kernel/msgmax" in done.stdout, done
