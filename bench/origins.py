"""The origins of a bench: nginx for HTTP and HTTPS, greetings and raw streams of our own. All on the load's core."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load import FILES, GREETING, block
from bench.processes import free_port, python_module, running, wait_for_port
from tests.origins.certificates import make_certificates

NAME: Final = "origin.example"

CONFIGURATION: Final = """
worker_processes 1;
daemon off;
{user}
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    sendfile on;
    tcp_nodelay on;
    keepalive_requests 100000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    ssl_certificate {directory}/leaf.pem;
    ssl_certificate_key {directory}/leaf.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    server {{
        listen 127.0.0.1:{https} ssl backlog=4096;
        listen 127.0.0.1:{http} backlog=4096;
        root {directory}/files;
        location = / {{ default_type text/plain; return 200 "{greeting}"; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Ports on 127.0.0.1. Every TLS origin is called NAME, under the authority whose PEM is `cacert`."""

    greet: int
    https: int
    http: int
    bulk: int
    hold: int
    cacert: Path
    leaf: Path  # certificate and key in one PEM file, as every origin shows it

    @property
    def all_tls_ports(self) -> tuple[int, ...]:
        """The ports that begin with a ClientHello."""
        return self.greet, self.https, self.bulk, self.hold


@contextmanager
def start_origins(directory: Path, *, core: int) -> Iterator[Origins]:
    """Make certificates and files, start both programs, wait until they serve."""
    make_certificates(directory, [NAME])
    pair = [(directory / name).read_bytes() for name in ("leaf.pem", "leaf.key")]
    (directory / "both.pem").write_bytes(b"".join(pair))
    (directory / "files").mkdir()
    repeated = block()
    for name, size in FILES.items():
        with (directory / "files" / name).open("wb") as out:
            for begin in range(0, size, len(repeated)):
                out.write(repeated[: size - begin])
    ports = {name: free_port() for name in ("https", "http")}
    greeting = GREETING.decode().replace("\n", "\\n")
    # Without the right to another uid (an ordinary user, a user namespace) nginx keeps its own and warns of `user`.
    user = "user root;" if directory.owner() == "root" else ""
    text = CONFIGURATION.format(directory=directory, greeting=greeting, user=user, **ports)
    (directory / "nginx.conf").write_text(text)
    log = directory / "origins.log"
    with ExitStack() as started:
        command: list[str | Path] = [shutil.which("nginx") or "nginx", "-p", directory, "-c", directory / "nginx.conf"]
        process = started.enter_context(running(command, core=core, log=log))
        for port in ports.values():
            wait_for_port(port, process, log)
        talker, _ = started.enter_context(python_module("bench.stream_origin", core=core, log=log))
        streams = talker.read()
        yield Origins(
            **ports,
            greet=streams["greet"],
            bulk=streams["bulk"],
            hold=streams["hold"],
            cacert=directory / "ca.pem",
            leaf=directory / "both.pem",
        )
