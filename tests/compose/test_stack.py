"""The stack on a real engine: the job it is there for, what its containers really are, what is left after each end."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.compose.engine import Engine
from tests.compose.processes import below, kill, mounts, sleepers, status, wait_until
from tests.compose.stack import AGENT, ALLOWED, BROKER, CONTROL, DENIED, RUNNER, Stack, what_is_left

FETCH = ("curl", "-sS", "--max-time", "20", "--fail-with-body")
OWNERS = {"broker": BROKER, "runner": RUNNER, "agent": AGENT}


def health(stack: Stack, service: str) -> str:
    state = stack.engine.inspect(stack.container(service))["State"]
    return str(state.get("Health", {}).get("Status", "")) if state["Running"] else "gone"


def test_the_job_it_is_there_for(stack: Stack) -> None:
    grant = stack.grant("--call", "call-7")

    allowed = stack.sandboxed(*FETCH, f"https://{ALLOWED}/v1/thing", grant=grant)
    denied = stack.sandboxed(*FETCH, f"https://{DENIED}/", grant=grant)
    alone = stack.sandboxed(*FETCH, f"https://{ALLOWED}/")

    assert (allowed.returncode, allowed.stdout) == (0, f"origin answers {ALLOWED} /v1/thing\n".encode())
    assert denied.returncode == 22, denied.stderr
    problem = json.loads(denied.stdout)
    assert problem["reason"] == "host_not_allowed"
    assert alone.returncode == 6, alone.stderr  # no name is known without a cable
    decisions = {one["authority"]: one for one in stack.records(kind="decision", call="call-7")}
    assert decisions[f"{ALLOWED}:443"]["verdict"] == "allow"
    assert decisions[f"{DENIED}:443"]["verdict"] == "deny"
    assert problem["record"] == decisions[f"{DENIED}:443"]["id"]
    verified = stack.call("broker", "wicketgate", "audit", "verify", "--state-dir", "/var/lib/wicketgate")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_job_through_an_agent_server(stack: Stack) -> None:
    fetch = " ".join(FETCH)
    code, allowed = stack.ask_agent({"tool": "fetch", "script": f"{fetch} https://{ALLOWED}/v1/x"})
    assert (code, allowed["exit_code"]) == (200, 0), allowed
    assert allowed["stdout"] == f"origin answers {ALLOWED} /v1/x\n"
    _, denied = stack.ask_agent({"tool": "fetch", "script": f"{fetch} https://{DENIED}/"})
    assert denied["exit_code"] == 22, denied
    assert json.loads(denied["stdout"])["reason"] == "host_not_allowed"
    _, alone = stack.ask_agent({"tool": "shell", "script": f"id -u; {fetch} https://{ALLOWED}/"})
    assert (alone["exit_code"], alone["stdout"]) == (6, "1000\n")
    assert alone["audit"]["grant"] is None

    for answer, verdict in ((allowed, "allow"), (denied, "deny")):
        (record,) = stack.records(kind="decision", call=answer["audit"]["call"])
        assert (record["verdict"], record["session"]) == (verdict, answer["audit"]["session"])
        assert record["grant"] == answer["audit"]["grant"]


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"tool": "fetch"}, 400),
        ({"tool": "fetch", "script": "true", "allow": ["other.origin.example:443"]}, 400),
        ({"tool": "fetch", "script": ["true"]}, 400),
        ({"tool": "root", "script": "true"}, 404),
        ({"tool": ["fetch"], "script": "true"}, 400),
    ],
)
def test_nothing_in_a_request_widens_a_tool(stack: Stack, document: dict[str, object], status: int) -> None:
    code, answer = stack.ask_agent(document)
    assert (code, set(answer)) == (status, {"error"})


def test_what_the_containers_really_are(stack: Stack) -> None:
    outside = stack.engine.init
    for service, uid in OWNERS.items():
        pid = stack.engine.host_pid(stack.container(service))
        is_init = service == "runner"  # its first process is the engine's docker-init, under the same account
        told = status(pid)
        assert told["Uid"].split() == [str(uid)] * 4, service
        assert told["Gid"].split() == [str(uid)] * 4, service
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(told[name], 16) == 0, (service, name)
        assert told["NoNewPrivs"] == "1", service
        assert told["Seccomp"] == "2", service
        for kind in ("pid", "net", "mnt", "ipc", "uts"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/{outside}/ns/{kind}"), (service, kind)
        seen = mounts(pid)
        assert "ro" in seen["/"], service
        writable = {place for place, options in seen.items() if "rw" in options and "overlay" not in options}
        assert not any(place.endswith("docker.sock") for place in seen), service
        masked = {place for place in seen if place.startswith("/proc/")}
        if is_init:
            assert not masked
            assert "ro" in seen["/run/wicketgate"]
        else:
            assert "/proc/sys" in masked, service
        allowed = {"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/tmp", "/etc/hosts", "/etc/hostname"}
        allowed |= {"/etc/resolv.conf", "/workspaces", "/run/wicketgate-runner", "/var/lib/wicketgate-runner"}
        # The list of control groups is root's, and so is what hides parts of /proc: writing needs more than the mount.
        allowed |= {"/run/wicketgate", "/var/lib/wicketgate", "/sys/fs/cgroup", *masked}
        assert writable <= allowed, (service, writable - allowed)
        if service == "agent":
            assert not {"/etc/wicketgate", "/var/lib/wicketgate"} & set(seen)
            continue
        assert "ro" in seen["/etc/wicketgate"]
        assert not {place for place in writable if place.startswith("/var/lib/wicketgate")} & (
            {"/var/lib/wicketgate"} if is_init else {"/var/lib/wicketgate-runner"}
        )


def test_the_filter_of_the_live_runner_is_ours_and_holds(stack: Stack) -> None:
    """What the runtime installed, and what the kernel then answers to calls that the engine's default refuses."""
    installed = stack.engine.bundle(stack.container("runner"))["linux"]["seccomp"]
    assert {"clone", "mount", "pivot_root", "sethostname", "setns", "umount2", "unshare"} <= {
        name for rule in installed["syscalls"] if not rule.get("args") for name in rule["names"]
    }
    assert installed["defaultAction"] == "SCMP_ACT_ERRNO"
    # Calls that the kernel answers otherwise to who may nothing, so that EPERM and ENOSYS are the filter's.
    script = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
calls = {"keyctl": (250, -1), "add_key": (248, -1, -1), "request_key": (249, -1, -1), "userfaultfd": (323, -1),
         "perf_event_open": (298, -1), "personality": (135, 0x400000), "io_uring_setup": (425, 1, -1)}
for name, (number, *words) in calls.items():
    ctypes.set_errno(0)
    answer = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(word) for word in (*words, 0, 0, 0)))
    if answer >= 0 or ctypes.get_errno() not in (1, 38): print(name)
"""
    python = ("/usr/bin/python3", "-I", "-c", script)
    done = stack.call("runner", *python)
    assert (done.returncode, done.stdout) == (0, b""), done
    options = ("--rm", "--cap-drop", "ALL", "--network", "none", "--security-opt", "seccomp=unconfined")
    oracle = stack.engine.docker("run", *options, "--entrypoint", python[0], "wicketgate:local", *python[1:]).split()
    assert {"keyctl", "add_key", "request_key", "perf_event_open", "personality"} <= set(oracle)


def test_the_runner_has_no_network_and_the_broker_one(stack: Stack) -> None:
    def interfaces(service: str) -> set[str]:
        pid = stack.engine.host_pid(stack.container(service))
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return {line.partition(":")[0].strip() for line in lines}

    assert interfaces("runner") == {"lo"}
    assert interfaces("broker") == interfaces("agent") == {"lo", "eth0"}


def test_unmasked_proc_gives_the_runner_nothing(stack: Stack) -> None:
    script = """
    for name in kernel/core_pattern kernel/modprobe vm/drop_caches kernel/sysrq; do
        if (: >/proc/sys/$name) 2>/dev/null; then echo "can write $name"; fi
    done
    if (: >/proc/sysrq-trigger) 2>/dev/null; then echo 'can write sysrq-trigger'; fi
    if head -c 1 /proc/kcore >/dev/null 2>&1; then echo 'can read kcore'; fi
    true
    """
    done = stack.call("runner", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, b""), done


@pytest.mark.parametrize("cable", [False, True], ids=["alone", "with a cable"])
def test_the_proof_from_inside_a_sandbox_in_a_container(stack: Stack, cable: bool) -> None:
    program = stack.call("runner", "wicketgate", "doctor", "--inside").stdout.decode()
    grant = stack.grant() if cable else None
    words = ["brokered"] if cable else []
    done = stack.sandboxed("/usr/bin/python3", "-I", "-S", "-c", program, *words, grant=grant)
    assert done.returncode == 0, done
    assert len(json.loads(done.stdout)["checks"]) == 11


def test_each_socket_knows_its_users(stack: Stack) -> None:
    for user, socket, answer in ((RUNNER, CONTROL, 1), (12345, CONTROL, 1), (AGENT, CONTROL, 0)):
        done = stack.call("broker", "wicketgate", "grant", "list", "--socket", socket, user=user)
        assert done.returncode == answer, (user, done)
        assert answer == 0 or b"peer_refused" in done.stderr
    doctor = stack.call(
        "broker", "wicketgate", "doctor", "--attach", "/run/wicketgate/attach.sock", "--json", user=AGENT
    )
    broker = next(one for one in json.loads(doctor.stdout)["findings"] if one["check"] == "broker")
    assert (broker["state"], broker["layer"]) == ("failed", "broker")
    assert f"user {AGENT}" in broker["sentence"]


def test_nothing_of_a_sandbox_survives_its_runner(stack: Stack) -> None:
    mark = "98431"
    script = f"setsid sleep {mark} & nohup sleep {mark} & sleep {mark}"
    detached = stack.engine.run(
        "docker", "exec", "--detach", stack.container("runner"), "wicketgate", "run", "--", "bash", "-c", script
    )
    assert detached.returncode == 0, detached
    wait_until(lambda: len(sleepers(mark)) == 3, 20, "the payload runs")

    kill(stack.engine.host_pid(stack.container("runner")))

    wait_until(lambda: not sleepers(mark), 20, "all of the payload is gone")
    wait_until(lambda: health(stack, "runner") == "healthy", 120, "the engine started the runner anew")
    done = stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=stack.grant())
    assert done.returncode == 0, done


def test_a_killed_broker_comes_back_with_its_grants(stack: Stack) -> None:
    grant = stack.grant()
    assert stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=grant).returncode == 0
    before = stack.engine.host_pid(stack.container("broker"))

    kill(before)

    wait_until(lambda: health(stack, "broker") == "healthy", 120, "the engine started the broker anew")
    assert stack.engine.host_pid(stack.container("broker")) != before
    done = stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=grant)
    assert done.returncode == 0, done
    verified = stack.call("broker", "wicketgate", "audit", "verify", "--state-dir", "/var/lib/wicketgate")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_an_engine_that_dies_brings_the_stack_back(stack: Stack) -> None:
    """As a machine that loses its power: nothing was told to stop, and everything starts by itself."""
    grant = stack.grant("--call", "before-the-crash")
    assert stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=grant).returncode == 0

    stack.engine.crash()
    stack.engine.launch()

    wait_until(lambda: {health(stack, name) for name in OWNERS} == {"healthy"}, 180, "all services are healthy again")
    done = stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=grant)
    assert done.returncode == 0, done
    assert len(stack.records(kind="decision", call="before-the-crash", verdict="allow")) == 2
    verified = stack.call("broker", "wicketgate", "audit", "verify", "--state-dir", "/var/lib/wicketgate")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_without_its_broker_the_runner_says_so(stack: Stack) -> None:
    stack.compose("stop", "--timeout", "5", "broker")
    done = stack.call("runner", "wicketgate", "doctor", "--attach", "/run/wicketgate/attach.sock", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 78
    assert report["modes"] == {"sandbox": True, "bridge": False}
    broker = next(one for one in report["findings"] if one["check"] == "broker")
    assert (broker["layer"], broker["off"]) == ("broker", ["bridge"])
    run = stack.sandboxed("true", grant="0123456789abcdef")
    assert run.returncode == 125


def check_health(stack: Stack, service: str) -> "subprocess.CompletedProcess[bytes]":
    """Do what the engine does to learn a container's health: the same command, in the container."""
    command = stack.engine.inspect(stack.container(service))["Config"]["Healthcheck"]["Test"]
    assert command[0] == "CMD"
    return stack.call(service, *command[1:])


@pytest.mark.parametrize(
    ("service", "sentence"),
    [
        ("broker", b"wicketgate: The broker at /run/wicketgate/control.sock does not answer within 8 s.\n"),
        ("runner", b"wicketgate: The runner at /run/wicketgate-runner/runner.sock does not answer within 8 s.\n"),
    ],
)
def test_who_is_there_and_does_not_answer_is_not_healthy(stack: Stack, service: str, sentence: bytes) -> None:
    assert check_health(stack, service).returncode == 0
    processes = below(stack.engine.host_pid(stack.container(service)))
    try:
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        hung = check_health(stack, service)
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
    assert (hung.returncode, hung.stderr) == (1, sentence)
    wait_until(lambda: check_health(stack, service).returncode == 0, 60, "it goes on")


def test_that_egress_is_off_is_no_illness(stack: Stack) -> None:
    switch = """
import asyncio, sys
from wicketgate import Broker
async def main():
    async with Broker() as broker: await broker.switch_egress(enabled=sys.argv[1] == "on")
asyncio.run(main())
"""
    python = ("/opt/wicketgate/bin/python", "-I", "-c", switch)
    assert stack.call("agent", *python, "off").returncode == 0
    try:
        assert check_health(stack, "broker").returncode == check_health(stack, "runner").returncode == 0
        assert stack.sandboxed(*FETCH, f"https://{ALLOWED}/").returncode == 6
    finally:
        assert stack.call("agent", *python, "on").returncode == 0


def test_a_broker_that_can_keep_no_record_is_not_healthy(engine: Engine, stack: Stack) -> None:
    """Its disk is full: nothing is granted, and health says so until there is room again."""
    name = "broker-on-a-small-disk"
    options = ("--user", "64320", "--read-only", "--cap-drop", "ALL", "--network", "none", "--tmpfs", "/tmp")
    places = ("--tmpfs", "/var/lib/wicketgate:uid=64320,mode=0700,size=4m", "--tmpfs", "/run/wicketgate:uid=64320")
    config = ("--volume", "/run/work/config:/etc/wicketgate:ro")
    asked = ("wicketgate", "health", "--broker", CONTROL)
    start = ("broker", "--config", "/etc/wicketgate/broker.toml")
    engine.docker("run", "--detach", "--name", name, *options, *places, *config, "wicketgate:local", *start)

    def inside(*command: str, user: int = BROKER) -> "subprocess.CompletedProcess[bytes]":
        return engine.run("docker", "exec", "--user", f"{user}:{user}", name, *command)

    try:
        wait_until(lambda: inside(*asked).returncode == 0, 60, "it is healthy at first")
        inside("sh", "-c", "cat /dev/zero >/var/lib/wicketgate/litter")
        words = ("--ttl", "1m", "--socket", CONTROL)
        granted = inside("wicketgate", "grant", "issue", "--allow", f"{ALLOWED}:443", *words, user=AGENT)
        assert (granted.returncode, b"record_unavailable" in granted.stderr) == (1, True), granted

        def is_ill() -> bool:
            """The page that the log ends in takes some more records, here of grants that the policy does not cover."""
            uncovered = "wicketgate grant issue --allow uncovered.example:443 " + " ".join(words)
            inside("sh", "-c", f"for n in 1 2 3 4 5 6 7 8; do {uncovered}; done", user=AGENT)
            return inside(*asked).returncode == 1

        wait_until(is_ill, 180, "the log is full")
        ill = inside(*asked)
        assert ill.stderr.startswith(f"wicketgate: The broker at {CONTROL} serves nobody: log_unavailable: ".encode())
        assert b"No space left on device" in ill.stderr
        inside("rm", "/var/lib/wicketgate/litter")
        wait_until(lambda: inside(*asked).returncode == 0, 60, "it is healthy again")
    finally:
        engine.docker("rm", "--force", name)


def test_a_plain_down_leaves_the_named_volumes_and_nothing_else(engine: Engine, stack: Stack) -> None:
    """What was decided is not lost by it: the log is there and whole when the stack is up again."""
    grant = stack.grant("--call", "before-the-down")
    assert stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=grant).returncode == 0
    stack.compose("--profile", "*", "down", "--timeout", "5")
    left = what_is_left(engine)
    names = ("broker-state", "runner-state", "runner-sockets", "sockets", "workspaces")
    assert left.pop("volumes") == {f"wicketgate_{name}" for name in names}
    assert not any(left.values()), left
    stack.up()
    assert len(stack.records(kind="decision", call="before-the-down", verdict="allow")) == 1
    verified = stack.call("broker", "wicketgate", "audit", "verify", "--state-dir", "/var/lib/wicketgate")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_down_leaves_nothing(engine: Engine, stack: Stack) -> None:
    stack.sandboxed("true")
    stack.down()
    left = what_is_left(engine)
    assert not any(left.values()), left
