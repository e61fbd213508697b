"""The peers that look into TLS, each with the configuration that someone would write who wants just that.

Squid with ssl_bump (the OpenSSL flavour of Debian's package), mitmdump with an addon that looks at each request (by
pip, in an environment of the bench's own), and HAProxy under one fixed certificate, which decides nothing: a bound.
"""

import datetime as dt
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.origins import NAME
from bench.peers import SQUID, give_to, serve
from bench.processes import ROOT, free_port
from bench.subjects import Place, Running, Subject, program_version
from tests.origins.certificates import make_authority

INSPECT_KINDS: Final = frozenset(["ask", "ask-new", "download", "hold"])
CERTIFICATE_MAKER: Final = Path("/usr/lib/squid/security_file_certgen")
MITMDUMP: Final = ROOT / ".venv-bench" / "bin" / "mitmdump"

BUMP: Final = (
    SQUID.replace(
        "http_port 127.0.0.1:{port}",
        "http_port 127.0.0.1:{port} ssl-bump generate-host-certificates=on dynamic_cert_mem_cache_size=16MB "
        "tls-cert={directory}/authority.pem",
    )
    + """
sslcrtd_program {maker} -s {directory}/certificates -M 16MB
sslcrtd_children 2 startup=1
acl hello at_step SslBump1
ssl_bump peek hello
ssl_bump bump all
tls_outgoing_options cafile={cacert}
hosts_file {directory}/hosts
"""
)

ADDON: Final = """\
seen = 0


def request(flow):
    global seen
    seen += flow.request.method == "GET"
"""

HAPROXY: Final = """
global
    maxconn 8192
    nbthread 1
    log 127.0.0.1:{syslog} local0
defaults
    mode http
    log global
    option httplog
    http-reuse always
    timeout connect 10s
    timeout client 600s
    timeout server 600s
    timeout http-request 10s
listen inspected
    bind 127.0.0.1:{port} ssl crt {leaf} alpn http/1.1
    server origin 127.0.0.1:{origin} ssl verify required ca-file {cacert} sni str({name}) verifyhost {name}
"""


def write_authority(path: Path) -> str:
    """Write a P-256 authority, certificate and key in one file; the certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    text = make_authority(key, dt.datetime.now(dt.UTC)).public_bytes(pem)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(text + private)
    return text.decode()


@contextmanager
def start_bump(place: Place) -> Iterator[Running]:
    port, directory = free_port(), place.directory
    cacert = write_authority(directory / "authority.pem")
    (directory / "hosts").write_text(f"127.0.0.1 {NAME}\n")
    subprocess.run(
        [CERTIFICATE_MAKER, "-c", "-s", directory / "certificates", "-M", "16MB"], check=True, capture_output=True
    )
    user = give_to("proxy", directory, "authority.pem", "certificates")
    text = BUMP.format(
        port=port,
        directory=directory,
        maker=CERTIFICATE_MAKER,
        cacert=place.origins.cacert,
        user=f"cache_effective_user {user}" if user else "",
    )
    (directory / "squid.conf").write_text(text)
    command: list[str | Path] = [shutil.which("squid") or "squid", "-N", "-f", directory / "squid.conf"]
    with serve(place, command, port, way={"proxy": ("127.0.0.1", port), "cacert": cacert}) as up:
        yield up


@contextmanager
def start_mitmdump(place: Place) -> Iterator[Running]:
    port, directory = free_port(), place.directory
    (directory / "addon.py").write_text(ADDON)
    settings = {
        "confdir": directory,
        "ssl_verify_upstream_trusted_ca": place.origins.cacert,
        "connection_strategy": "lazy",
        "stream_large_bodies": "2m",
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command: list[str | Path] = [MITMDUMP, "--quiet", "--listen-host", "127.0.0.1", "--listen-port", str(port)]
    command += [*options, "--scripts", directory / "addon.py"]
    way: dict[str, Any] = {"proxy": ("127.0.0.1", port)}
    with serve(place, command, port, way=way) as up:
        way["cacert"] = (directory / "mitmproxy-ca-cert.pem").read_text()  # made before it listens
        yield up


@contextmanager
def start_haproxy(place: Place) -> Iterator[Running]:
    port, origins = free_port(), place.origins
    text = HAPROXY.format(
        port=port, syslog=free_port(), leaf=origins.leaf, origin=origins.https, cacert=origins.cacert, name=NAME
    )
    (place.directory / "haproxy.cfg").write_text(text)
    command: list[str | Path] = [shutil.which("haproxy") or "haproxy", "-db", "-f", place.directory / "haproxy.cfg"]
    with serve(place, command, port, ports={origins.https: port}) as up:
        yield up


def _bumping_squid() -> str | None:
    return program_version("squid", "-v")() if CERTIFICATE_MAKER.exists() else None


INSPECTING: Final = (
    Subject(name="Squid ssl_bump", version=_bumping_squid, start=start_bump, kinds=INSPECT_KINDS, inspects=True),
    Subject(
        name="mitmdump",
        version=program_version(str(MITMDUMP), "--version"),
        start=start_mitmdump,
        kinds=INSPECT_KINDS,
        inspects=True,
    ),
    Subject(
        name="HAProxy, fixed certificate",
        version=program_version("haproxy", "-v"),
        start=start_haproxy,
        kinds=INSPECT_KINDS,
        inspects=True,
    ),
)
