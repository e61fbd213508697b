"""Control groups v2 on Debian's kernel: a runner in a delegated group bounds each session as a whole, and undoes it.

Started by root it gives its part to the serving user; an ordinary user, as a service manager's delegation has it, may
divide what is its own.
"""

import json
from collections.abc import Iterator

import pytest

from tests.vm.machine import Machine

GROUP = "/sys/fs/cgroup/delegated"
MIB = 1 << 20
USER = 1234
PLACE = "/run/groups"
CONFIG = f'version = 1\n[runner]\nstate = "{PLACE}/state"\nruntime = "{PLACE}/run"\nparked = 0\n'
# In the machine: starts the runner as process of the delegated group, asks it, and prints one document.
PROGRAM = """
import asyncio, glob, json, os, signal, subprocess, sys, time
from pathlib import Path
sys.path[:0] = ["/project", "/project/site"]
from wicketgate.runner.client import Authority, Call, Runner
from wicketgate.runner.schema import LimitsAsked
MIB = 1 << 20
MANY = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        block = bytearray(60 << 20)
        time.sleep(2)
        os._exit(0)
print(sorted(os.WTERMSIG(os.wait()[1]) for _ in range(3)))
'''
FORKS = '''
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError as error:
    print(made, error.errno)
'''
BURN = '''
import os, time
def used():
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system
begin, before = time.monotonic(), used()
children = [os.fork() for _ in range(2)]
while time.monotonic() < begin + 4:
    pass
if 0 in children:
    os._exit(0)
for _ in range(2):
    os.wait()
print((used() - before) / (time.monotonic() - begin))
'''

async def ask(found):
    def python(script):
        return Call(argv=["/usr/bin/python3", "-c", script])
    async with Runner("/run/groups/run/runner.sock") as runner:
        found["bounds"] = (await runner.health()).bounds
        many = await runner.run(python(MANY), Authority(limits=LimitsAsked(memory_bytes=100 * MIB)))
        found["bounded memory"] = [many.code, many.stdout.decode()]
        found["more memory"] = (await runner.run(python(MANY))).stdout.decode()
        forks = await runner.run(python(FORKS), Authority(limits=LimitsAsked(tasks=40)))
        found["tasks"] = forks.stdout.decode()
        share = await runner.run(python(BURN), Authority(limits=LimitsAsked(cpus=0.2)))
        found["processors"] = [float(share.stdout), float((await runner.run(python(BURN))).stdout)]
        limits = LimitsAsked(memory_bytes=200 * MIB, tasks=77, cpus=0.5)
        async with runner.session(Authority(limits=limits)) as session:
            await runner.run_in(session.id, Call(bash="true"))
            (group,) = glob.glob(f"{sys.argv[1]}/wicketgate-*-server/wicketgate-1-*")
            names = ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
            found["session"] = {name: Path(group, name).read_text().strip() for name in names}
            look = await runner.run_in(session.id, Call(bash="cat /proc/self/cgroup; ls /sys"))
            found["seen inside"] = look.stdout.decode()
        found["next"] = (await runner.run(Call(bash="echo next"))).stdout.decode()
        await runner.start_job(Call(bash="sleep 600"))

def below(place):
    return sorted(str(path.relative_to(place)) for path in Path(place).rglob("wicketgate-*"))

def main(place, user):
    found = {}
    words = ["/usr/bin/python3", "-m", "wicketgate", "runner", "--config", "/run/groups/runner.toml"]
    drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"] if int(user) else []
    environ = os.environ | {"PYTHONPATH": "/project:/project/site"}
    enter = f"echo $$ >{place}/cgroup.procs; exec \\"$@\\""
    process = subprocess.Popen(["sh", "-c", enter, "sh", *drop, *words], env=environ, stderr=subprocess.PIPE)
    end = time.monotonic() + 300
    while subprocess.run(["curl", "-s", "--unix-socket", "/run/groups/run/runner.sock", "http://localhost/v1/health"],
                         capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            sys.exit("it does not answer: " + process.stderr.read().decode())
        time.sleep(0.2)
    try:
        asyncio.run(ask(found))
    finally:
        found["while it serves"] = below(place)
        process.send_signal(signal.SIGKILL if user == "0" else signal.SIGTERM)
        process.wait()
        end = time.monotonic() + 10
        while (left := below(place)) and time.monotonic() < end:
            time.sleep(0.02)
        found["left"] = left
        found["given"] = Path(place, "cgroup.subtree_control").read_text().split()
    print(json.dumps(found))

main(*sys.argv[1:])
"""


@pytest.fixture
def delegated(vm: Machine) -> Iterator[str]:
    vm.check("sh", "-c", f"echo '+memory +pids +cpu' >/sys/fs/cgroup/cgroup.subtree_control && mkdir {GROUP}")
    vm.check("sh", "-c", f"mkdir -p {PLACE} && chmod 755 {PLACE} && cat >{PLACE}/runner.toml", given=CONFIG.encode())
    yield GROUP
    vm.run("sh", "-c", f"for pid in $(cat {GROUP}/cgroup.procs); do echo $pid >/sys/fs/cgroup/cgroup.procs; done")
    vm.run("sh", "-c", f"rm -rf {PLACE}; rmdir {GROUP}")


@pytest.mark.parametrize("user", [0, USER], ids=["root", "an ordinary user"])
def test_a_delegated_group_bounds_each_session(vm: Machine, delegated: str, user: int) -> None:
    if user:
        given = " ".join(f"{GROUP}/{name}" for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"))
        vm.check("sh", "-c", f"chown {user} {given} {PLACE} {PLACE}/runner.toml")
    done = vm.run("/usr/bin/python3", "-c", PROGRAM, delegated, str(user), seconds=900)
    assert done.code == 0, done
    found = json.loads(done.stdout)
    assert found["bounds"] == "v2"
    code, killed = found["bounded memory"]
    assert code == 137 or "9" in killed, found
    assert found["more memory"] == "[0, 0, 0]\n", "the oracle: each alone is within either bound"
    made, error = map(int, found["tasks"].split())
    assert (made < 40, error) == (True, 11)
    bounded, free = found["processors"]
    assert bounded < 0.3 < 0.6 < free, "of one processor"
    assert found["session"] == {
        "memory.max": str(200 * MIB),
        "memory.swap.max": "0",
        "pids.max": "77",
        "cpu.max": "50000 100000",
    }
    assert "delegated" not in found["seen inside"]
    assert found["next"] == "next\n"
    assert len(found["while it serves"]) >= 2
    assert (found["left"], found["given"]) == ([], []), "undone, however it ended"


def test_strangers_in_the_group_are_left_where_they_are(vm: Machine, delegated: str) -> None:
    """A group that holds other processes cannot be divided without moving those: the word of the doctor, not force."""
    script = f"sleep 600 & echo $! >{delegated}/cgroup.procs; echo $$ >{delegated}/cgroup.procs; "
    script += "/usr/bin/python3 -m wicketgate doctor --json; kill $!; echo $$ >/sys/fs/cgroup/cgroup.procs"
    environment = {"PYTHONPATH": "/project:/project/site"}
    done = vm.run("sh", "-c", script, seconds=240, environment=environment)
    report = json.loads(done.stdout)
    (found,) = [one for one in report["findings"] if one["check"] == "cgroups"]
    assert found["state"] == "warning"
    assert "also holds processes that are not this server's" in found["sentence"]


def test_the_doctor_tries_what_the_runner_does(vm: Machine, delegated: str) -> None:
    script = f"echo $$ >{delegated}/cgroup.procs; exec /usr/bin/python3 -m wicketgate doctor --json"
    done = vm.run("sh", "-c", script, seconds=240, environment={"PYTHONPATH": "/project:/project/site"})
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "cgroups"]
    assert found["sentence"] == "Control groups (v2) bound memory and tasks of each session of a runner."
    assert vm.check("sh", "-c", f"ls -d {delegated}/wicketgate-* || echo none").strip() == "none"
