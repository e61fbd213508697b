"""Wicketgate as a subject: the load client is the payload of `wicketgate run`, everything else of it is the proxy.

So what is measured is the product as it ships: sandbox, bridge, capture, policy, audit log. The whole of it sits on the
proxy's core; the payload moves itself to the load's core.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.accounting import tree
from bench.inspecting import INSPECT_KINDS
from bench.origins import NAME
from bench.peers import TUNNEL_KINDS
from bench.processes import INTERPRETER, ROOT, talking
from bench.subjects import Place, Running, Subject

POLICY: Final = """\
version = 1

[egress]
enabled = true

[[rule]]
name = "origin"
action = "allow"
hosts = ["{name}"]
ports = {ports}
tls = "{tls}"
addresses = ["127.0.0.1/32"]
"""


def command_of(place: Place, workspace: Path, tls: str, module: str) -> list[str]:
    """`wicketgate run` with one cable to every TLS origin, which are spliced or inspected."""
    policy = place.directory / "policy.toml"
    policy.write_text(POLICY.format(name=NAME, ports=sorted(place.origins.all_tls_ports), tls=tls))
    words = [sys.executable, "-m", module, "run", "--workspace", str(workspace), "--policy", str(policy)]
    for port in place.origins.all_tls_ports:
        words += ["--resolve", f"{NAME}:{port}:127.0.0.1"]
    words += ["--cacert", str(place.origins.cacert)]
    return [*words, "--", INTERPRETER, str(workspace / "load.py"), str(place.load_core)]


def payload_of(pids: set[int], script: Path) -> set[int]:
    """The load client's own process among those of the run, known by how its arguments begin."""
    wanted = f"{INTERPRETER}\0{script}".encode()
    found = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(wanted):
                found.add(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@contextmanager
def start(place: Place, tls: str, module: str = "wicketgate") -> Iterator[Running]:
    """One run, whose payload is the load client."""
    workspace = place.directory / "workspace"
    workspace.mkdir()
    script = workspace / "load.py"
    shutil.copy(ROOT / "bench" / "load.py", script)
    with talking(command_of(place, workspace, tls, module), core=place.proxy_core, log=place.log) as (client, pid):
        client.read()
        # Any address of port 53 reaches the broker's name server; this one is what the sandbox's resolv.conf names.
        way = {"name_server": client.tell(verb="name_server")["address"]}
        if tls == "inspect":
            way["trust"] = "system"

        def proxy() -> set[int]:
            everything = tree(pid)
            return everything - payload_of(everything, script)

        yield Running(client=client, proxy=proxy, way=way)


UNLOGGED: Final = Subject(
    name="Wicketgate, inspect, no log",
    version=lambda: version("wicketgate"),
    start=partial(start, tls="inspect", module="bench.unlogged"),
    kinds=frozenset(["ask"]),
    inspects=True,
)
OURS: Final = (
    Subject(
        name="Wicketgate, splice",
        version=lambda: version("wicketgate"),
        start=partial(start, tls="splice"),
        kinds=TUNNEL_KINDS,
        ours=True,
    ),
    Subject(
        name="Wicketgate, inspect",
        version=lambda: version("wicketgate"),
        start=partial(start, tls="inspect"),
        kinds=INSPECT_KINDS,
        ours=True,
        inspects=True,
    ),
)
