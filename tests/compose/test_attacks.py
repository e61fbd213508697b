"""A stack that somebody set up carelessly or wrote to: what is dangerous is refused, the rest stays shut."""

import json
import shutil
from subprocess import CompletedProcess

import pytest

from tests.compose.engine import Engine
from tests.compose.processes import sleepers, status, wait_until
from tests.compose.stack import AGENT, ATTACH, BROKER, CONTROL, FILES, RUNNER, SETTINGS, Stack
from tests.tree import ROOT

HARDENED = ("--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", "--security-opt", "no-new-privileges")
PROFILES = (
    *("--security-opt", "seccomp=/run/project/deploy/seccomp/runner.json"),
    *("--security-opt", "systempaths=unconfined", "--tmpfs", "/tmp"),
)
CONFIG = ("--volume", "/run/work/careless:/etc/wicketgate:ro")
AS_BROKER = ("--user", f"{BROKER}:{BROKER}", *CONFIG)
AS_RUNNER = ("--user", f"{RUNNER}:{RUNNER}", *PROFILES, *CONFIG)
BROKER_PLACES = {"/var/lib/wicketgate": f"uid={BROKER},mode=0700", "/run/wicketgate": f"uid={BROKER},mode=0755"}
RUNNER_PLACES = {
    "/var/lib/wicketgate-runner": f"uid={RUNNER},mode=0700",
    "/run/wicketgate-runner": f"uid={RUNNER},mode=0755",
    "/workspaces": f"uid={RUNNER},mode=0755",
}


@pytest.fixture(autouse=True)
def careless(engine: Engine) -> None:
    """A configuration of our own to spoil."""
    config = engine.work / "careless"
    shutil.rmtree(config, ignore_errors=True)
    shutil.copytree(ROOT / "deploy/config", config, copy_function=shutil.copyfile)
    for path in (config, *config.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)


def start(engine: Engine, daemon: str, **places: str) -> "CompletedProcess[bytes]":
    """Start a daemon in a container of its own. `places`: mount options by the last part of a directory's name."""
    usual, options = (BROKER_PLACES, AS_BROKER) if daemon == "broker" else (RUNNER_PLACES, AS_RUNNER)
    mounted = {place: places.get(place.rpartition("/")[2].replace("-", "_"), mode) for place, mode in usual.items()}
    tmpfs = [word for place, mode in mounted.items() for word in ("--tmpfs", f"{place}:{mode}")]
    command = ("wicketgate:local", daemon, "--config", f"/etc/wicketgate/{daemon}.toml")
    return engine.run("docker", "run", *HARDENED, *options, *tmpfs, *command, seconds=30)


@pytest.mark.parametrize(
    ("daemon", "file", "mode", "owner"),
    [
        ("broker", "policy.toml", 0o666, 0),
        ("broker", "policy.toml", 0o644, AGENT),
        ("broker", "broker.toml", 0o664, 0),
        ("broker", "broker.toml", 0o644, RUNNER),
        ("broker", ".", 0o777, 0),
        ("broker", ".", 0o755, RUNNER),
        ("runner", "runner.toml", 0o666, 0),
        ("runner", "runner.toml", 0o644, AGENT),
        ("runner", ".", 0o775, 0),
    ],
)
def test_a_configuration_that_others_can_write_is_not_followed(
    engine: Engine, daemon: str, file: str, mode: int, owner: int
) -> None:
    place = engine.work / "careless" / file
    place.chmod(mode)
    shutil.chown(place, owner, owner)
    done = start(engine, daemon)
    assert done.returncode == 125, done
    name = b"/etc/wicketgate" + (b"" if file == "." else f"/{file}".encode())
    assert name in done.stderr
    assert (b"chmod go-w" if owner == 0 else b"chown") in done.stderr, done


@pytest.mark.parametrize(
    ("daemon", "places", "name"),
    [
        ("broker", {"wicketgate": "uid=0,mode=0777"}, b"/wicketgate"),
        ("broker", {"wicketgate": f"uid={AGENT},mode=0777"}, b"/wicketgate"),
        ("broker", {"wicketgate": f"uid={BROKER},mode=0777"}, b"/wicketgate"),
        ("runner", {"wicketgate_runner": "uid=0,mode=0777"}, b"/wicketgate-runner"),
        ("runner", {"wicketgate_runner": f"uid={AGENT},mode=0755"}, b"/wicketgate-runner"),
        ("runner", {"wicketgate_runner": f"uid={RUNNER},mode=0777"}, b"/wicketgate-runner"),
    ],
)
def test_a_volume_that_others_can_write_is_not_used(
    engine: Engine, daemon: str, places: dict[str, str], name: bytes
) -> None:
    """State and sockets alike: whoever may write there could stand in for a daemon, or plant what it reads."""
    done = start(engine, daemon, **places)
    assert done.returncode == 125, done
    assert name in done.stderr
    assert b"An error of Wicketgate itself" not in done.stderr, done


@pytest.mark.parametrize(
    "managed",
    ["/", "/run/wicketgate-runner", "/var/lib/wicketgate-runner", "/run/wicketgate", "/etc/wicketgate", "/proc"],
)
def test_a_workspace_root_that_holds_our_own_state_is_refused(engine: Engine, managed: str) -> None:
    file = engine.work / "careless/runner.toml"
    file.write_text(file.read_text().replace('managed = "/workspaces"', f'managed = "{managed}"'))
    name = "careless-runner"
    places = ("--tmpfs", f"/run/wicketgate:uid={RUNNER},mode=0755")
    tmpfs = [word for place, mode in RUNNER_PLACES.items() for word in ("--tmpfs", f"{place}:{mode}")]
    options = ("--detach", "--name", name, *HARDENED[1:], *AS_RUNNER, *places, *tmpfs)
    engine.docker("run", *options, "wicketgate:local", "runner", "--config", "/etc/wicketgate/runner.toml")
    try:
        script = """
        for n in $(seq 100); do [ -S /run/wicketgate-runner/runner.sock ] && break; sleep 0.1; done
        wicketgate workspace create x --socket /run/wicketgate-runner/runner.sock
        """
        done = engine.run("docker", "exec", name, "sh", "-c", script)
        refused = done.returncode, done.stdout
        said = done.stderr.decode() + engine.run("docker", "logs", name).stderr.decode()
    finally:
        engine.docker("rm", "--force", name)
    assert refused[0] != 0, (refused, said)
    assert managed in said, said


CARELESS = """
services:
  runner:
    security_opt: !override ["no-new-privileges:true", "seccomp:deploy/seccomp/runner.json"]
"""


def test_an_override_that_takes_away_what_sandboxes_need_keeps_the_tools_off(stack: Stack) -> None:
    """The whole way of compose.yaml: the runner ends with 78 and says why, and the agent server is not started."""
    (stack.engine.work / "careless.yaml").write_text(CARELESS)
    stack.down()
    up = ("--profile", "example", "up", "--detach", "--wait", "--wait-timeout", "60", "--no-build", "--pull", "never")
    files = (*FILES, "-f", "/run/work/careless.yaml")
    done = stack.engine.compose(*files, *up, settings=SETTINGS, check=False, seconds=180)
    try:
        assert done.returncode != 0
        runner = stack.container("runner")
        wait_until(lambda: stack.engine.inspect(runner)["State"]["ExitCode"] == 78, 60, "it ends with 78")
        said = stack.logs("runner")
        assert "FAILED  processes: The kernel refuses a fresh /proc, because a container engine hides parts" in said
        assert "the security option systempaths=unconfined, as in compose.yaml" in said
        assert "the process tools must stay off" in said
        assert stack.engine.inspect(stack.container("agent"))["State"]["Status"] == "created"
        sockets = ("--rm", "--volume", "wicketgate_runner-sockets:/s", "--entrypoint", "ls", "wicketgate:local", "/s")
        assert stack.engine.docker("run", *sockets) == ""
    finally:
        stack.down()


@pytest.mark.parametrize("cable", [False, True], ids=["alone", "with a cable"])
def test_no_socket_of_the_stack_can_be_reached_from_a_sandbox(stack: Stack, cable: bool) -> None:
    script = f"""
import os, socket
found = []
for directory, names, files in os.walk("/", followlinks=False):
    if directory == "/":
        names[:] = [name for name in names if name not in ("proc", "sys", "usr")]
    found += [directory + "/" + name for name in files if os.path.exists(directory + "/" + name)
              and (os.stat(directory + "/" + name).st_mode & 0o170000) == 0o140000]
for path in ("{CONTROL}", "{ATTACH}", "/run/wicketgate-runner/runner.sock"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        for name in (path, "\\0" + path, "/proc/1/root" + path):
            try: socket.socket(socket.AF_UNIX, kind).connect(name)
            except OSError: continue
            found.append(name)
found += [line.split()[-1] for line in open("/proc/net/unix").readlines()[1:] if len(line.split()) > 7]
found += [path for path in ("/workspaces", "/etc/wicketgate", "/var/lib/wicketgate", "/var/lib/wicketgate-runner",
          "/run/wicketgate", "/run/wicketgate-runner") if os.path.lexists(path)]
print(found)
"""
    done = stack.sandboxed("/usr/bin/python3", "-c", script, grant=stack.grant() if cable else None)
    assert (done.returncode, done.stdout) == (0, b"[]\n"), done


@pytest.mark.parametrize(("service", "user"), [("runner", RUNNER), ("agent", AGENT), ("agent", 12345)])
def test_nobody_but_the_broker_changes_its_sockets(stack: Stack, service: str, user: int) -> None:
    """A runner or an agent server that was taken over cannot put a socket of its own where the others look."""
    script = """
    cd /run/wicketgate || exit 3
    rm -f control.sock attach.sock; ln -s /tmp/x attach.sock; mv control.sock old; touch new; chmod 666 .; touch .
    [ -S control.sock ] && [ -S attach.sock ] && [ ! -e new ] && [ ! -e old ]
    """
    done = stack.call(service, "sh", "-c", script, user=user)
    assert done.returncode == 0, done
    # The runner's own socket stays the runner's.
    if user != RUNNER:
        done = stack.call(
            service, "sh", "-c", "rm -f /run/wicketgate-runner/runner.sock; touch /workspaces/new", user=user
        )
        assert done.returncode != 0
        assert stack.call("runner", "test", "-S", "/run/wicketgate-runner/runner.sock").returncode == 0


def test_what_the_engine_is_told_to_set_does_not_reach_a_command(engine: Engine) -> None:
    hostile = {
        "SECRET": "sk-hostile-94132",
        "BASH_ENV": "/tmp/94132",
        "PYTHONSTARTUP": "/tmp/94132",
        "LD_AUDIT": "/tmp/94132",
        "http_proxy": "http://94132.example",
        "IFS": "94132",
        "TMPDIR": "/94132",
        "WICKETGATE_ATTACH": "/94132",
    }
    words = [word for name, value in hostile.items() for word in ("--env", f"{name}={value}")]
    state = ("--env", "XDG_STATE_HOME=/state", "--tmpfs", f"/state:uid={RUNNER},mode=0700")
    look = "env; set; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    command = ("wicketgate:local", "run", "--", "bash", "-c", look)
    done = engine.run("docker", "run", *HARDENED, *PROFILES, *state, *words, *command)
    assert done.returncode == 0, done
    assert b"PATH=" in done.stdout
    assert b"94132" not in done.stdout, done


@pytest.mark.parametrize(
    "options", [("--privileged",), ("--privileged", "--user", "0"), ("--cap-add", "ALL", "--user", "0")]
)
def test_an_override_that_gives_the_container_everything_gives_a_command_nothing(
    engine: Engine, options: tuple[str, ...]
) -> None:
    """Nobody should do this; who does loses the outer wall, not the inner one."""
    given = ("--rm", "--network", "none", *options, *(PROFILES if "--cap-add" in options else ()))
    # Who starts as root has its state where the image has the broker's.
    state = ("--env", "XDG_STATE_HOME=/tmp/state", "--tmpfs", f"/var/lib/wicketgate:uid={RUNNER},mode=0700")
    done = engine.run("docker", "run", *given, *state, "wicketgate:local", "doctor", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["modes"]) == (0, {"sandbox": True, "bridge": True}), report
    assert report["facts"]["uid"] != 0
    script = """
    grep -h ^Cap /proc/self/status
    for path in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /dev/kmsg /dev/vda /usr/bin/env; do
        (: >>$path) 2>/dev/null && echo "can write $path"
    done
    mount -t tmpfs none /tmp 2>/dev/null && echo 'can mount'
    true
    """
    run = engine.run("docker", "run", *given, *state, "wicketgate:local", "run", "--", "sh", "-c", script)
    assert {line.partition(":\t")[2] for line in run.stdout.decode().splitlines()} == {"0" * 16}, run

    name, mark = "given-everything", "98433"
    sleep = ("wicketgate:local", "run", "--", "sleep", mark)
    engine.docker("run", "--detach", "--name", name, *given[1:], *state, *sleep)
    try:
        wait_until(lambda: len(sleepers(mark)) == 1, 20, "the command runs")
        told = status(sleepers(mark)[0])
        assert not {"0"} & {*told["Uid"].split(), *told["Gid"].split(), *told["Groups"].split()}, told
        assert told["CapBnd"] == "0" * 16
    finally:
        engine.docker("rm", "--force", name)
