"""Bombs in a running daemon: each ends inside, the next call works, and a larger bound shows what ended it."""

import os
import subprocess
from dataclasses import dataclass

import pytest

from tests.live.runners import daemon, serving_uid
from wicketgate.runner.client import Authority, Call, Runner
from wicketgate.runner.schema import LimitsAsked

pytestmark = [pytest.mark.live, pytest.mark.alone]
MIB = 1 << 20
FORKS = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
    print("passed")
except OSError as error:
    print("bounded", error.errno)
"""
OPENS = """
import os
held = []
try:
    while len(held) < 500:
        held.append(os.dup(0))
    print("passed")
except OSError as error:
    print("bounded", error.errno)
"""
# Half a gigabyte, touched; a killed process or an exception, as the host bounds it.
MEMORY = """
import os
pid = os.fork()
if pid == 0:
    try:
        block = bytearray(300 << 20)
    except MemoryError:
        os._exit(7)
    os._exit(0)
print({0: "passed"}.get(os.waitpid(pid, 0)[1], "bounded"))
"""
GROWS = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("/tmp/large", "wb") as file:
        for _ in range(40):
            file.write(bytes(1 << 20))
    print("passed")
except OSError as error:
    print("bounded", error.errno)
"""
FILLS = """
import os, sys
wrote = "passed"
for number in range(40):
    try:
        with open(f"{sys.argv[1]}/{number}", "wb") as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        wrote = f"bounded {error.errno}"
print(wrote)
"""
SPINS = """
import os, time
pid = os.fork()
if pid == 0:
    end = time.process_time() + 2.5
    while time.process_time() < end:
        pass
    os._exit(0)
print({0: "passed"}.get(os.waitpid(pid, 0)[1], "bounded"))
"""


@dataclass(frozen=True, slots=True)
class Bomb:
    script: str
    small: LimitsAsked
    words: tuple[str, ...] = ()


BOMBS = {
    "forks": Bomb(FORKS, LimitsAsked(tasks=50)),
    "descriptors": Bomb(OPENS, LimitsAsked(descriptors=128)),
    "memory": Bomb(MEMORY, LimitsAsked(memory_bytes=100 * MIB)),
    "a file": Bomb(GROWS, LimitsAsked(file_bytes=8 * MIB)),
    "processor time": Bomb(SPINS, LimitsAsked(cpu_seconds=1)),
    **{
        f"a full {place}": Bomb(FILLS, LimitsAsked(tmp_bytes=8 * MIB), (place,))
        for place in ("/tmp", "/var/tmp", "/run", "/home/sandbox")
    },
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_ends_inside_and_the_next_call_works(runner: Runner, name: str) -> None:
    bomb = BOMBS[name]
    call = Call(argv=["/usr/bin/python3", "-c", bomb.script, *bomb.words])
    bounded = await runner.run(call, Authority(limits=bomb.small))
    assert bounded.stdout.startswith(b"bounded"), bounded
    async with runner.session(Authority(limits=bomb.small)) as session:
        again = await runner.run_in(session.id, call)
        assert again.stdout.startswith(b"bounded"), "a call that joins is bounded, too"
        if name != "forks":  # there the sleepers are left, which is the next test's matter
            next_one = await runner.run_in(session.id, Call(bash="echo next"))
            assert next_one.stdout == b"next\n", "in the same session"
    free = await runner.run(call)
    assert free.stdout == b"passed\n", f"the oracle: with the usual bounds nothing is in its way: {free}"
    assert (await runner.run(Call(bash="echo next"))).stdout == b"next\n"


async def test_a_fork_bomb_in_a_session_leaves_the_others_alone(runner: Runner) -> None:
    async with runner.session(Authority(limits=LimitsAsked(tasks=50))) as session, runner.session() as other:
        await runner.run_in(session.id, Call(argv=["/usr/bin/python3", "-c", FORKS]))
        assert (await runner.run_in(other.id, Call(bash="echo fine | cat"))).stdout == b"fine\n"


async def test_a_flood_of_output_is_cut_on_each_stream_and_told(runner: Runner) -> None:
    authority = Authority(limits=LimitsAsked(output_bytes=64 << 10))
    flood = "head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait; echo end"
    done = await runner.run(Call(bash=flood), authority)
    assert (done.code, len(done.stdout) + len(done.stderr)) == (0, 64 << 10)
    assert done.dropped_bytes == 40_000_004 - (64 << 10)


# ---- what of the server could be seen ------------------------------------------------------------------------------

LOOK = """
import glob, os, sys
word, found = sys.stdin.readline().strip().encode(), set()
for kind in ("environ", "cmdline", "maps", "status"):
    for path in glob.glob(f"/proc/[0-9]*/{kind}"):
        try:
            if word in open(path, "rb").read():
                found.add(path)
        except OSError:
            pass
print(len(found))
"""


async def test_the_servers_variables_and_arguments_are_nowhere_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-" + os.urandom(8).hex()
    monkeypatch.setenv("WICKETGATE_TEST_SECRET", secret)
    with daemon() as made:
        look = Call(argv=["/usr/bin/python3", "-c", LOOK], stdin=secret)
        async with made.client() as runner:
            assert (await runner.run(look)).stdout == b"0\n"
            async with runner.session() as session:
                assert (await runner.run_in(session.id, look)).stdout == b"0\n"
            opened = await runner.open_terminal()
            shown = await runner.run_in_terminal(opened.id, f"python3 -c '{LOOK}' <<<{secret}")
            assert shown.output == "0\n"
            await runner.close_terminal(opened.id)
        # The oracle: outside, the same look finds it in the first process of the caller's that it may read.
        drop = {"user": serving_uid(), "group": serving_uid(), "extra_groups": []} if os.geteuid() == 0 else {}
        words = ["/usr/bin/python3", "-c", LOOK]
        done = subprocess.run(words, check=True, capture_output=True, input=secret.encode(), **drop)  # type: ignore[call-overload]
        assert int(done.stdout) >= 1
