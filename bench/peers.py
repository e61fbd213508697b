"""The peers, from Debian's packages, each with the configuration that someone would write who only wants a tunnel.

Access logs are on where a peer has them by default, as ours is.
"""

import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.processes import free_port, running, wait_for_port
from bench.subjects import Place, Running, Subject, plain_client, process_tree, program_version

TUNNEL_KINDS: Final = frozenset(["greet", "stream", "ask", "ask-new", "download", "hold", "idle"])

SQUID: Final = """
http_port 127.0.0.1:{port}
http_access allow all
cache deny all
cache_mem 8 MB
access_log stdio:{directory}/access.log
cache_log {directory}/cache.log
pid_filename {directory}/squid.pid
coredump_dir {directory}
max_filedescriptors 16384
pinger_enable off
shutdown_lifetime 0 seconds
visible_hostname bench
{user}
"""

TINYPROXY: Final = """
Port {port}
Listen 127.0.0.1
Timeout 600
MaxClients 4096
LogFile "{directory}/tinyproxy.log"
LogLevel Connect
PidFile "{directory}/tinyproxy.pid"
"""

HAPROXY: Final = """
global
    maxconn 8192
    nbthread 1
    log 127.0.0.1:{syslog} local0
defaults
    mode tcp
    log global
    option tcplog
    timeout connect 10s
    timeout client 600s
    timeout server 600s
{sections}
"""

HAPROXY_SECTION: Final = """
listen to_{origin}
    bind 127.0.0.1:{port}
    server origin 127.0.0.1:{origin}
"""


def give_to(user: str, directory: Path, *names: str) -> str:
    """Let the proxy's own account have a directory and what is named in it; the account's name if it can be become."""
    if os.geteuid() != 0:
        return ""
    account = pwd.getpwnam(user)
    for top in (directory / name for name in names):
        for path in (top, *top.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
    os.chown(directory, account.pw_uid, account.pw_gid)
    return user


@contextmanager
def serve(place: Place, command: list[str | Path], port: int, **how: Any) -> Iterator[Running]:
    """Start a proxy and a client of it."""
    with (
        running(command, core=place.proxy_core, log=place.log) as process,
        plain_client(place) as client,
    ):
        wait_for_port(port, process, place.log)
        yield Running(client=client, proxy=process_tree(process.pid), **how)


@contextmanager
def start_squid(place: Place) -> Iterator[Running]:
    port, user = free_port(), give_to("proxy", place.directory)
    configuration = place.directory / "squid.conf"
    line = f"cache_effective_user {user}" if user else ""
    configuration.write_text(SQUID.format(port=port, directory=place.directory, user=line))
    command: list[str | Path] = [shutil.which("squid") or "squid", "-N", "-f", configuration]
    with serve(place, command, port, way={"proxy": ("127.0.0.1", port)}) as up:
        yield up


@contextmanager
def start_tinyproxy(place: Place) -> Iterator[Running]:
    port = free_port()
    configuration = place.directory / "tinyproxy.conf"
    configuration.write_text(TINYPROXY.format(port=port, directory=place.directory))
    command: list[str | Path] = [shutil.which("tinyproxy") or "tinyproxy", "-d", "-c", configuration]
    with serve(place, command, port, way={"proxy": ("127.0.0.1", port)}) as up:
        yield up


@contextmanager
def start_haproxy(place: Place) -> Iterator[Running]:
    ports = {origin: free_port() for origin in place.origins.all_tls_ports}
    sections = "".join(HAPROXY_SECTION.format(origin=origin, port=port) for origin, port in ports.items())
    configuration = place.directory / "haproxy.cfg"
    configuration.write_text(HAPROXY.format(sections=sections, syslog=free_port()))
    command: list[str | Path] = [shutil.which("haproxy") or "haproxy", "-db", "-f", configuration]
    with serve(place, command, next(iter(ports.values())), ports=ports) as up:
        yield up


@contextmanager
def start_direct(place: Place) -> Iterator[Running]:
    """No proxy: what client and origin reach on their one core is the ceiling of every rate."""
    with plain_client(place) as client:
        yield Running(client=client, proxy=set)


DIRECT: Final = Subject(name="direct", version=lambda: "", start=start_direct, kinds=TUNNEL_KINDS, inspects=None)
PEERS: Final = (
    Subject(name="Squid", version=program_version("squid", "-v"), start=start_squid, kinds=TUNNEL_KINDS),
    Subject(name="tinyproxy", version=program_version("tinyproxy", "-v"), start=start_tinyproxy, kinds=TUNNEL_KINDS),
    Subject(
        name="HAProxy, layer 4",
        version=program_version("haproxy", "-v"),
        start=start_haproxy,
        kinds=TUNNEL_KINDS,
    ),
)
