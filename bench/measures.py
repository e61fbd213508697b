"""What is measured of tunnels and of inspection, and one sample of it."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from bench.accounting import core_now
from bench.origins import Origins
from bench.processes import cores
from bench.subjects import Running

HELD: Final = 200  # tunnels kept open at once for the memory of one; below the default limit of a session
MEGABYTE: Final = 1_000_000


class Unit(Enum):
    """What a rate counts."""

    CONNECTIONS = "connections/s"
    REQUESTS = "requests/s"
    REQUESTS_PER_CPU = "requests per CPU second of the limiting process"
    MEGABYTES = "MB/s"
    MICROSECONDS = "µs"
    KILOBYTES = "KB"
    HELD = "MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One row of questions to every subject. `kind` is the load client's scenario, `origin` a field of Origins."""

    key: str
    title: str
    kind: str
    origin: str
    concurrency: int
    unit: Unit
    inspection: bool = False  # a question to those that look into TLS, not to those that join streams

    @property
    def reference(self) -> str:
        """The peer that the others are compared with."""
        return "Squid ssl_bump" if self.inspection else "Squid"

    @property
    def less_is_better(self) -> bool:
        return self.unit in (Unit.MICROSECONDS, Unit.KILOBYTES, Unit.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One subject's figure in one round; CPU is the proxy's microseconds for one operation or one MB."""

    value: float
    cpu: float | None
    proxy_core: float | None = (
        None  # share of the time that the proxy's core was busy: a rate is the proxy's own near 1
    )
    load_core: float | None = None  # the same of client and origin: near 1 they are the bottleneck


MEASURES: Final = (
    Measure(
        key="idle",
        title="memory of everything that was started, idle",
        kind="idle",
        origin="hold",
        concurrency=0,
        unit=Unit.HELD,
    ),
    Measure(
        key="idle-broker",
        title="memory of the largest process, idle: the proxy itself, of ours the broker",
        kind="idle largest",
        origin="hold",
        concurrency=0,
        unit=Unit.HELD,
    ),
    # First, before a proxy has memory to spare from other tunnels.
    Measure(
        key="memory",
        title=f"memory of one tunnel, {HELD} held",
        kind="hold",
        origin="hold",
        concurrency=HELD,
        unit=Unit.KILOBYTES,
    ),
    Measure(
        key="new",
        title="new connections (ClientHello, greeting, end)",
        kind="greet",
        origin="greet",
        concurrency=48,
        unit=Unit.CONNECTIONS,
    ),
    Measure(
        key="new-tls",
        title="new TLS connections, one request each",
        kind="ask-new",
        origin="https",
        concurrency=32,
        unit=Unit.CONNECTIONS,
    ),
    Measure(
        key="kept",
        title="kept-alive TLS requests",
        kind="ask",
        origin="https",
        concurrency=32,
        unit=Unit.REQUESTS,
    ),
    Measure(
        key="bulk-1",
        title="raw bulk behind a ClientHello, 1 stream",
        kind="stream",
        origin="bulk",
        concurrency=1,
        unit=Unit.MEGABYTES,
    ),
    Measure(
        key="bulk-8",
        title="raw bulk behind a ClientHello, 8 streams",
        kind="stream",
        origin="bulk",
        concurrency=8,
        unit=Unit.MEGABYTES,
    ),
    Measure(
        key="bulk-tls",
        title="TLS bulk, 8 streams",
        kind="download block",
        origin="https",
        concurrency=8,
        unit=Unit.MEGABYTES,
    ),
    Measure(
        key="wait-kept",
        title="median time of a kept-alive request, 1 client",
        kind="ask",
        origin="https",
        concurrency=1,
        unit=Unit.MICROSECONDS,
    ),
    Measure(
        key="wait-new",
        title="median time of a new connection, 1 client",
        kind="greet",
        origin="greet",
        concurrency=1,
        unit=Unit.MICROSECONDS,
    ),
    Measure(
        key="inspect-memory",
        title=f"memory of one inspected connection, {HELD} held",
        kind="hold",
        origin="https",
        concurrency=HELD,
        unit=Unit.KILOBYTES,
        inspection=True,
    ),
    Measure(
        key="inspect-kept",
        title="inspected kept-alive requests",
        kind="ask",
        origin="https",
        concurrency=32,
        unit=Unit.REQUESTS,
        inspection=True,
    ),
    Measure(
        key="inspect-new",
        title="new inspected connections, one request each",
        kind="ask-new",
        origin="https",
        concurrency=32,
        unit=Unit.CONNECTIONS,
        inspection=True,
    ),
    Measure(
        key="inspect-bulk-1",
        title="inspected bulk, one body of 200 MB",
        kind="download large",
        origin="https",
        concurrency=1,
        unit=Unit.MEGABYTES,
        inspection=True,
    ),
    Measure(
        key="inspect-bulk-8",
        title="inspected bulk, 8 x 1 MB",
        kind="download small",
        origin="https",
        concurrency=8,
        unit=Unit.MEGABYTES,
        inspection=True,
    ),
    Measure(
        key="inspect-wait-kept",
        title="median time of an inspected kept-alive request, 1 client",
        kind="ask",
        origin="https",
        concurrency=1,
        unit=Unit.MICROSECONDS,
        inspection=True,
    ),
    Measure(
        key="inspect-wait-new",
        title="median time of a new inspected connection, 1 client",
        kind="ask-new",
        origin="https",
        concurrency=1,
        unit=Unit.MICROSECONDS,
        inspection=True,
    ),
)


class NothingMovedError(RuntimeError):
    """No operation was finished in the time given: a sample that is missing, not one that is wrong."""


def take(measure: Measure, subject: Running, origins: Origins, seconds: float) -> Sample:
    """Measure once. Raises RuntimeError when the subject could not do it or gave wrong bytes."""
    if measure.unit is Unit.HELD:
        memory = subject.largest() if measure.kind == "idle largest" else subject.cost().memory
        return Sample(value=memory / MEGABYTE, cpu=None)
    if measure.unit is Unit.KILOBYTES:
        return _memory(measure, subject, origins)
    order = {"kind": measure.kind, "concurrency": measure.concurrency, "seconds": seconds}
    watched = cores()
    cores_before = [core_now(core) for core in watched]
    before = subject.cost().cpu
    result = subject.tell("perform", _port(measure, origins), cacert=origins.cacert.read_text(), **order)
    spent = subject.cost().cpu - before
    busy = [core_now(core).share_since(earlier) for core, earlier in zip(watched, cores_before, strict=True)]
    amount = result["bytes"] / MEGABYTE if measure.unit is Unit.MEGABYTES else result["operations"]
    if not amount:
        raise NothingMovedError("nothing came through")
    value = result["p50"] * 1e6 if measure.unit is Unit.MICROSECONDS else amount / result["seconds"]
    return Sample(
        value=value,
        cpu=spent / amount * 1e6 if subject.proxy() else None,
        proxy_core=busy[0],
        load_core=busy[1],
    )


def _memory(measure: Measure, subject: Running, origins: Origins) -> Sample:
    """The growth of the proxy's memory, divided by the tunnels held, from the second on: the first loads and fills."""
    order = {"secure": measure.inspection, "cacert": origins.cacert.read_text()}
    subject.tell("hold", _port(measure, origins), count=1, **order)
    before = subject.cost().memory
    subject.tell("hold", _port(measure, origins), count=measure.concurrency, **order)
    growth = subject.cost().memory - before
    subject.tell("release", _port(measure, origins))
    return Sample(value=growth / measure.concurrency / 1024, cpu=None)


def _port(measure: Measure, origins: Origins) -> int:
    port: int = getattr(origins, measure.origin)
    return port
