"""An optional peer, by npm: the HTTP proxy that sandbox-runtime starts for its sandboxes, and the start of one.

Its proxy runs as its own library starts it, with an allow-list; once more with TLS terminated. It is asked from outside
a sandbox, which spares it the socat relay that its sandboxes need. Needs Node, npm, ripgrep and socat; left out where
one of them is missing.
"""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.origins import NAME
from bench.peers import TUNNEL_KINDS
from bench.processes import ROOT, talking
from bench.subjects import Place, Running, Subject, plain_client, process_tree

PREFIX: Final = ROOT / ".venv-bench" / "npm"
PACKAGE: Final = PREFIX / "node_modules" / "@anthropic-ai" / "sandbox-runtime"
COMMAND: Final = PREFIX / "node_modules" / ".bin" / "srt"

SETTINGS: Final[dict[str, Any]] = {
    "network": {"allowedDomains": ["127.0.0.1", NAME], "deniedDomains": []},
    "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []},
}

# The name server of the bench has no name but the sandbox's: what Squid reads from a hosts file is said here.
SERVE: Final = """
import dns from "node:dns";
import {{ syncBuiltinESMExports }} from "node:module";
const lookup = dns.lookup;
dns.lookup = (name, ...rest) => lookup(name === {name} ? "127.0.0.1" : name, ...rest);
syncBuiltinESMExports();
const {{ SandboxManager }} = await import({library});
await SandboxManager.initialize({settings});
const told = {{ port: SandboxManager.getProxyPort(), token: SandboxManager.getProxyAuthToken() }};
const authority = SandboxManager.getMitmCA();
if (authority) told.cacert = authority.certPem;
console.log(JSON.stringify(told));
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
"""


def installed() -> str | None:
    """The version, None where it could not be started."""
    if any(shutil.which(program) is None for program in ("node", "rg", "socat", "bwrap")):
        return None
    try:
        version: str = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))["version"]
    except FileNotFoundError:
        return None
    return f"sandbox-runtime {version}"


def command_of_a_start(directory: Path) -> list[str]:
    """`srt true` under the same settings, which are kept in the directory."""
    settings = directory / "srt-settings.json"
    settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
    return ["env", f"TMPDIR={directory}", str(COMMAND), "--settings", str(settings), "-c", "true"]


@contextmanager
def start(place: Place) -> Iterator[Running]:
    """An opaque tunnel to an allowed host."""
    with _serve(place, SETTINGS["network"], {}) as up:
        yield up


@contextmanager
def start_terminating(place: Place) -> Iterator[Running]:
    """TLS ended at the proxy, under an authority that it makes itself, and begun anew."""
    network = {**SETTINGS["network"], "tlsTerminate": {}}
    with _serve(place, network, {"connect_to": NAME}) as up:
        yield up


@contextmanager
def _serve(place: Place, network: dict[str, Any], way: dict[str, Any]) -> Iterator[Running]:
    environment = [f"NODE_EXTRA_CA_CERTS={place.origins.cacert}", f"TMPDIR={place.directory}"]
    script = place.directory / "serve.mjs"
    library, name = json.dumps(str(PACKAGE / "dist" / "index.js")), json.dumps(NAME)
    settings = json.dumps({**SETTINGS, "network": network})
    script.write_text(SERVE.format(library=library, name=name, settings=settings), encoding="utf-8")
    with (
        talking(["env", *environment, "node", script], core=place.proxy_core, log=place.log) as (proxy, pid),
        plain_client(place) as client,
    ):
        told = proxy.read()
        credentials = base64.b64encode(f"srt:{told['token'] or ''}".encode()).decode()
        if "cacert" in told:
            way = {**way, "cacert": told["cacert"]}
        way = {**way, "proxy": ("127.0.0.1", told["port"]), "proxy_authorization": f"Basic {credentials}"}
        yield Running(client=client, proxy=process_tree(pid), way=way)


SANDBOX_RUNTIME: Final = Subject(name="sandbox-runtime", version=installed, start=start, kinds=TUNNEL_KINDS)
SANDBOX_RUNTIME_TLS: Final = Subject(
    name="sandbox-runtime, TLS terminated",
    version=installed,
    start=start_terminating,
    kinds=frozenset(["ask", "ask-new", "hold"]),  # it sends bodies in chunks of its own, which no download expects
    inspects=True,
)
