"""Starts the origins of this directory as processes and tells where they serve.

Each `start_…` is a context manager: the process is accepting connections inside it and gone after it.
"""

import json
import os
import select
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.origins.certificates import make_certificates

ROOT: Final = Path(__file__).parents[2]
READY_SECONDS: Final = 30
NAMES: Final = ("origin.example", "*.origin.example", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A running origin. `directory` holds its certificates, of which `cacert` is the authority to trust."""

    address: str
    ports: dict[str, int]
    directory: Path
    process: subprocess.Popen[str]

    @property
    def cacert(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def https(self) -> int:
        return self.ports["https"]

    @property
    def http(self) -> int:
        return self.ports["http"]


class HttpsOrigin(Origin):
    """The origin of `https_origin.py`."""

    __slots__ = ()

    def seen(self) -> list[dict[str, str]]:
        """The requests it has served, in order: method, host, target, scheme."""
        with urllib.request.urlopen(f"http://{self.address}:{self.http}/seen", timeout=10) as answer:
            requests: list[dict[str, str]] = json.load(answer)
        return requests

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.cacert))


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServer:
    """The running name server of `dns_origin.py`."""

    address: str
    port: int
    process: subprocess.Popen[str]

    def queries(self) -> list[dict[str, str]]:
        """The queries since the last call (transport, name, type). Complete once the answers have arrived."""
        # Read below the buffer: select() knows nothing of lines that a buffered reader already holds.
        assert self.process.stdout is not None
        descriptor, text = self.process.stdout.fileno(), b""
        while select.select([descriptor], [], [], 0)[0]:
            piece = os.read(descriptor, 65536)
            if not piece:
                break
            text += piece
        return [json.loads(line) for line in text.splitlines()]


@contextmanager
def _running(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.origins.{module}", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        yield process, _ready(process, module)
    finally:
        process.kill()
        process.communicate()


def _ready(process: subprocess.Popen[str], module: str) -> dict[str, int]:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], READY_SECONDS)[0]:
        raise TimeoutError(f"{module} was not ready within {READY_SECONDS} s")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{module} ended with {process.wait()} before it was ready; its message is above")
    ports: dict[str, int] = json.loads(line)
    return ports


@contextmanager
def start_https(
    directory: Path, *, address: str = "127.0.0.1", names: tuple[str, ...] = NAMES
) -> Iterator[HttpsOrigin]:
    """Serve on free ports of `address` under certificates in `directory`, made for `names` if absent."""
    if not (directory / "leaf.pem").exists():
        make_certificates(directory, names)
    with _running("https_origin", "--directory", str(directory), "--bind", address) as (process, ports):
        yield HttpsOrigin(address=address, ports=ports, directory=directory, process=process)


@contextmanager
def start_websocket(directory: Path, *, address: str = "127.0.0.1") -> Iterator[Origin]:
    """Serve the echo under the certificate that is in `directory`."""
    with _running("websocket_origin", "--directory", str(directory), "--bind", address) as (process, ports):
        yield Origin(address=address, ports=ports, directory=directory, process=process)


@contextmanager
def start_grpc(directory: Path, *, address: str = "127.0.0.1") -> Iterator[Origin]:
    """Serve the gRPC echo under the certificate that is in `directory`."""
    with _running("grpc_origin", "--directory", str(directory), "--bind", address) as (process, ports):
        yield Origin(address=address, ports=ports, directory=directory, process=process)


@contextmanager
def start_git(directory: Path, projects: Path, *, address: str = "127.0.0.1") -> Iterator[Origin]:
    """Serve the repositories below `projects` under the certificate that is in `directory`."""
    arguments: list[Any] = ["--directory", directory, "--projects", projects, "--bind", address]
    with _running("git_origin", *map(str, arguments)) as (process, ports):
        yield Origin(address=address, ports=ports, directory=directory, process=process)


@contextmanager
def start_names(*, address: str = "127.0.0.1", records: Path | None = None) -> Iterator[NameServer]:
    """Serve `records` (or tests/cases/dns_records.toml) on one free port, UDP and TCP."""
    arguments = ["--bind", address, *(["--records", str(records)] if records else [])]
    with _running("dns_origin", *arguments) as (process, ports):
        yield NameServer(address=address, port=ports["dns"], process=process)
