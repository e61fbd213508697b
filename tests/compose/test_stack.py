"""The stack on a real engine: the job it is there for, what its containers really are, what is left after each end."""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compose.engine import Engine
from tests.compose.stack import AGENT, ALLOWED, BROKER, CONTROL, DENIED, RUNNER, Stack

FETCH = ("curl", "-sS", "--max-time", "20", "--fail-with-body")
OWNERS = {"broker": BROKER, "runner": RUNNER, "agent": AGENT}


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mounts(pid: int) -> dict[str, list[str]]:
    """Mount point → options of the mount and of its file system, as the process sees them."""
    found = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        found[left.split(" ")[4]] = [*left.split(" ")[5].split(","), right.split(" ")[0]]
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        select.select([], [], [], 0.1)


def health(stack: Stack, service: str) -> str:
    state = stack.engine.inspect(stack.container(service))["State"]
    return str(state.get("Health", {}).get("Status", "")) if state["Running"] else "gone"


def kill(pid: int) -> None:
    """As the kernel's out-of-memory killer does, and wait for the end."""
    pidfd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
    finally:
        os.close(pidfd)


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
        ({"tool": ["fetch"], "script": "true"}, 404),
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

    wait_until(lambda: not sleepers(mark), 2, "all of the payload is gone")
    wait_until(lambda: health(stack, "runner") == "healthy", 40, "the engine started the runner anew")
    done = stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=stack.grant())
    assert done.returncode == 0, done


def sleepers(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                found.append(int(place.name))
    return found


def test_a_killed_broker_comes_back_with_its_grants(stack: Stack) -> None:
    grant = stack.grant()
    assert stack.sandboxed(*FETCH, f"https://{ALLOWED}/", grant=grant).returncode == 0
    before = stack.engine.host_pid(stack.container("broker"))

    kill(before)

    wait_until(lambda: health(stack, "broker") == "healthy", 40, "the engine started the broker anew")
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

    wait_until(lambda: {health(stack, name) for name in OWNERS} == {"healthy"}, 90, "all services are healthy again")
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


def test_down_leaves_nothing(engine: Engine, stack: Stack) -> None:
    stack.sandboxed("true")
    stack.down()
    assert engine.docker("ps", "--all", "--quiet") == ""
    assert engine.docker("volume", "ls", "--quiet") == ""
    assert set(engine.docker("network", "ls", "--format", "{{.Name}}").split()) == {"bridge", "host", "none"}
    left = engine.run("ps", "-e", "-o", "comm=").stdout.decode().split()
    assert set(left) <= {"docker-init", "dockerd", "containerd", "ps"}, left
