"""The broker as a process of its own, for one runner that was started together with it."""

import asyncio
import importlib
import resource
import signal
import socket
import ssl
from pathlib import Path

import msgspec
import uvloop

from broker.audit.location import audit_directory
from broker.audit.log import AuditLog
from broker.control.settings import Settings
from broker.gateway.attach import AttachConnection
from broker.gateway.broker import Broker
from broker.gateway.inspector import Inspector
from broker.gateway.resolve import Resolver, make_absolute
from certs.names import is_registry_suffix, read_suffixes
from certs.store import authority_directory

CERTIFICATES = (
    "certs.authority",
    "certs.contexts",
    "certs.upstream",
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.x509",
)
LOADED_LATER = (*CERTIFICATES, "concurrent.futures.thread", "broker.gateway.h2")


def preload() -> None:
    """Load what is otherwise loaded on first use, where that might fail: another user may not be able to read it.

    Elsewhere it is left for then: `cryptography` alone is a quarter of an idle broker's memory.
    """
    if not all(_is_public(Path(file)) for file in (__file__, ssl.__file__, msgspec.__file__)):
        for module in LOADED_LATER:
            importlib.import_module(module)
        read_suffixes()
    "\u00e4".encode("idna")  # `ssl` and the suffix list want this codec and punycode's; once found, a codec stays


def preload_shared() -> None:
    """Load what every worker of a broker needs from its start on, before they are forked: once for all of them."""
    for module in CERTIFICATES:
        importlib.import_module(module)
    is_registry_suffix("example")  # reads the list of them


def _is_public(file: Path) -> bool:
    """Whether any user can read it where it is."""
    above = all(parent.stat().st_mode & 0o001 for parent in file.parents)
    return above and bool(file.stat().st_mode & 0o004)


def serve_one(connection: socket.socket, settings: Settings) -> None:
    """Serve the session of one runner until its connection closes."""
    raise_descriptors()
    make_absolute()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As Python has them at its start, which whoever forked this process has undone: without it a peer that resets
    # its connection, or a full disk, would end the broker and every session with it.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(connection, settings))


async def _serve(connection: socket.socket, settings: Settings) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, done.set)
    directory = audit_directory(settings.state)
    log = AuditLog.open(directory)
    broker = Broker(
        loop,
        policy=settings.policy,
        log=log,
        log_location=str(directory),
        resolver=Resolver(settings.policy.limits, settings.fixed),
        inspector=Inspector(authority_directory(settings.state), settings.certificates),
        on_idle=done.set,
    )
    lease = AttachConnection(broker, connection)
    broker.reactor.run(lambda: lease.on_event(0))
    await done.wait()
    broker.close()


def raise_descriptors() -> None:
    """Take as many descriptors as this process may, and leave no core file: keys would be in it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
