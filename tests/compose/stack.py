"""The Compose stack as the tests drive it: its configuration, its commands, what its containers really are."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.compose.engine import Engine
from tests.origins.certificates import make_certificates
from tests.tree import ROOT

FILES: Final = ("-f", "compose.yaml", "-f", "tests/compose/compose.test.yaml")
REVIEW_PORT: Final = 9321  # not the usual one, so that a port written down somewhere is noticed
SETTINGS: Final = (
    "WICKETGATE_CONFIG=/run/work/config",
    "AGENT_ALLOW=api.origin.example:443",
    f"WICKETGATE_REVIEW_PORT={REVIEW_PORT}",
)
ALLOWED, DENIED = "api.origin.example", "other.origin.example"
BROKER, RUNNER, AGENT = 64320, 64321, 64322
CONTROL, ATTACH = "/run/wicketgate/control.sock", "/run/wicketgate/attach.sock"
POLICY: Final = f"""\
version = 1

[egress]
enabled = true

[[rule]]
name = "origin"
action = "allow"
hosts = ["{ALLOWED}"]
ports = [443, 80]
plain_http = true
addresses = ["172.16.0.0/12", "192.168.0.0/16", "10.0.0.0/8"] # wherever the engine puts its networks
"""


def prepare(work: Path) -> None:
    """Write the configuration that the containers see as /etc/wicketgate, and what the origin serves with."""
    origin, config = work / "origin", work / "config"
    for place in (origin, config):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o755)
    make_certificates(origin, [ALLOWED, DENIED])
    (origin / "origin.pem").write_bytes((origin / "leaf.pem").read_bytes() + (origin / "leaf.key").read_bytes())
    (origin / "origin.pem").chmod(0o644)
    shutil.copy(Path(__file__).with_name("origin.py"), origin)
    for file in (ROOT / "deploy/config").iterdir():
        shutil.copyfile(file, config / file.name)
    broker = (config / "broker.toml").read_text()
    (config / "broker.toml").write_text(
        broker.replace("\n[control]", '\ncacert = ["/etc/wicketgate/origin.pem"]\n\n[control]')
    )
    shutil.copyfile(origin / "ca.pem", config / "origin.pem")
    (config / "policy.toml").write_text(POLICY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The stack, by service name."""

    engine: Engine

    def compose(self, *words: str, check: bool = True, seconds: float = 300) -> "subprocess.CompletedProcess[bytes]":
        """Run `docker-compose` on the files of the stack."""
        return self.engine.compose(*FILES, *words, settings=SETTINGS, check=check, seconds=seconds)

    def up(self, *profiles: str) -> None:
        """Start broker, runner, origin, the agent and what further profiles hold; wait until they are healthy."""
        chosen = [word for profile in ("example", *profiles) for word in ("--profile", profile)]
        done = self.compose(*chosen, "up", "--detach", "--wait", "--no-build", "--pull", "never", check=False)
        assert done.returncode == 0, done.stderr.decode()[-2000:] + self.logs()

    def down(self) -> None:
        """End and remove everything, volumes included."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5", "--remove-orphans")

    def logs(self, *services: str) -> str:
        """What the services said."""
        return self.compose("logs", "--no-color", "--no-log-prefix", *services, check=False).stdout.decode()

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"wicketgate-{service}-1"

    def call(
        self, service: str, *command: str, user: int | None = None, seconds: float = 60
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command in a service's container."""
        as_user = ["--user", f"{user}:{user}"] if user is not None else []
        return self.engine.run("docker", "exec", *as_user, self.container(service), *command, seconds=seconds)

    def grant(self, *options: str) -> str:
        """Issue a grant for the allowed host as the agent server would; its id."""
        words = ["grant", "issue", "--allow", f"{ALLOWED}:443", "--ttl", "10m", "--json", "--socket", CONTROL, *options]
        done = self.call("broker", "wicketgate", *words, user=AGENT)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def sandboxed(
        self, *command: str, grant: str | None = None, seconds: float = 60
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command in a sandbox of the runner's container."""
        cable = ["--grant", grant, "--socket", ATTACH] if grant is not None else []
        return self.call("runner", "wicketgate", "run", *cable, "--", *command, seconds=seconds)

    def ask_agent(self, document: dict[str, object], path: str = "/calls") -> tuple[int, dict[str, Any]]:
        """Ask the example agent server as its users do, through the port that the engine publishes on loopback."""
        enter = ["nsenter", "--target", str(self.engine.init), "--net", "--"]
        words = ["curl", "-sS", "--max-time", "90", "-w", "\n%{http_code}", f"http://127.0.0.1:8080{path}"]
        done = subprocess.run(
            [*enter, *words, "--json", json.dumps(document)], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        text, _, status = done.stdout.rpartition("\n")
        return int(status), dict(json.loads(text))

    def records(self, **wanted: str) -> list[dict[str, Any]]:
        """What the broker's log says, as its auditor reads it."""
        done = self.call("broker", "sh", "-c", "cat /var/lib/wicketgate/audit/*.jsonl")
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return [one for one in found if all(one.get(name) == value for name, value in wanted.items())]


def what_is_left(engine: Engine) -> dict[str, set[str]]:
    """What an engine has beside its own."""

    def lines(*command: str) -> set[str]:
        return set(engine.run(*command).stdout.decode().split())

    links = lines("sh", "-c", "ls /sys/class/net") - {"lo", "docker0"}
    mounts = engine.run("cat", "/proc/self/mounts").stdout.decode().splitlines()
    return {
        "containers": lines("docker", "ps", "--all", "--quiet"),
        "networks": lines("docker", "network", "ls", "--format", "{{.Name}}") - {"bridge", "host", "none"},
        "volumes": lines("docker", "volume", "ls", "--quiet"),
        "processes": lines("ps", "-e", "-o", "comm=") - {"docker-init", "dockerd", "containerd", "ps"},
        "links": {name for name in links if name.startswith(("br-", "veth"))},
        "mounts": {line.split()[1] for line in mounts if line.startswith(("overlay", "shm", "nsfs"))},
    }
