"""What is measured: a proxy on a core of its own, and a load client that reaches the origins by way of it.

A subject is started once and stays up for all rounds, so that rounds can be interleaved. Each knows how its client
comes through: straight (`direct`), by CONNECT, through a fixed port (a layer-4 proxy), or from inside a sandbox.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.accounting import Cost, cost_of, tree
from bench.origins import NAME, Origins
from bench.processes import Talker, python_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a subject is set up."""

    directory: Path
    origins: Origins
    proxy_core: int
    load_core: int

    @property
    def log(self) -> Path:
        return self.directory / "messages.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started subject: its client, the processes that are the proxy, and what an order to the client must say."""

    client: Talker
    proxy: Callable[[], set[int]]
    way: dict[str, Any] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)  # a layer-4 proxy's port for an origin's

    def tell(self, verb: str, origin: int, **order: Any) -> dict[str, Any]:
        """Give the client an order for the origin on a port."""
        address = ("127.0.0.1", self.ports.get(origin, origin))
        return self.client.tell(**{"verb": verb, "name": NAME, "address": address, **order, **self.way})

    def cost(self) -> Cost:
        return cost_of(self.proxy())

    def largest(self) -> int:
        """Bytes of the process that holds the most memory."""
        return max((cost_of({pid}).memory for pid in self.proxy()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A name for the tables, where it comes from, and how it is started."""

    name: str
    version: Callable[[], str | None]
    start: Callable[[Place], AbstractContextManager[Running]]
    kinds: frozenset[str]  # the load client's scenarios that it can carry
    ours: bool = False
    inspects: bool | None = False  # whether it looks into TLS; None: there is nothing of it (`direct`)

    def takes_part(self, kind: str, *, inspection: bool) -> bool:
        """Whether a measure with a scenario of this kind, of tunnels or of inspection, is for this subject."""
        return kind.partition(" ")[0] in self.kinds and self.inspects in (None, inspection)


def program_version(program: str, *arguments: str) -> Callable[[], str | None]:
    """The first line of what a program says of its version, None when it is not installed."""

    def ask() -> str | None:
        if shutil.which(program) is None:
            return None
        told = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
        return (told.stdout or told.stderr).strip().partition("\n")[0]

    return ask


@contextmanager
def plain_client(place: Place) -> Iterator[Talker]:
    """The load client on the load's core, outside any sandbox."""
    with ExitStack() as started:
        client, _ = started.enter_context(python_module("bench.load", core=place.load_core, log=place.log))
        client.read()
        yield client


def process_tree(pid: int) -> Callable[[], set[int]]:
    return lambda: tree(pid)
