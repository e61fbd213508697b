"""A flood of refusals: the log grows slowly, and counts every one of them."""

import collections
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.audit.records import Kind, Plane, Record, Verdict
from broker.gateway.flood import BURST, KINDS, RATE, WINDOW_SECONDS, Flood
from broker.policy.reasons import Reason
from tests.broker.gateway.world import World, in_world, look_up, read_all


def refusal(host: str = "evil.example:443", path: str = "/", reason: Reason = Reason.HOST_NOT_ALLOWED) -> Record:
    return Record(
        kind=Kind.DECISION,
        session="s",
        plane=Plane.HTTP,
        authority=host,
        path=path,
        verdict=Verdict.DENY,
        reason=reason,
    )


class Log:
    """What a recorder does with a flood, on a clock of the test's."""

    def __init__(self) -> None:
        self.flood = Flood()
        self.lines: list[Record] = []
        self.ids: list[str] = []
        self.now = 0.0
        self.due: float | None = None

    def put(self, record: Record, after: float = 0.0) -> str:
        self.now += after
        if self.due is not None and self.now >= self.due:
            self.drain()
        held = self.flood.hold(record, self.now)
        if held is not None:
            return held
        self.lines.append(record)
        self.ids.append(f"id-{len(self.lines)}")
        self.flood.wrote(record, self.ids[-1])
        if self.flood.is_counting and self.due is None:
            self.due = self.now + WINDOW_SECONDS
        return self.ids[-1]

    def drain(self) -> None:
        self.due = None
        for record in self.flood.drain():
            self.lines.append(record)
            self.ids.append(f"id-{len(self.lines)}")

    @property
    def counted(self) -> int:
        return sum(line.count or 1 for line in self.lines)


def test_what_comes_in_a_burst_or_slowly_is_written_one_by_one() -> None:
    log = Log()
    for number in range(BURST):
        log.put(refusal(path=f"/{number}"))
    for number in range(200):
        log.put(refusal(path=f"/slow/{number}"), after=1.01 / RATE)
    log.drain()
    assert len(log.lines) == BURST + 200
    assert not any(line.count for line in log.lines)


def test_a_flood_is_counted_exactly_and_names_its_first() -> None:
    log = Log()
    for _ in range(BURST):
        log.put(refusal())
    first = log.put(refusal(path="/first"))
    assert {log.put(refusal(path=f"/{number}")) for number in range(5000)} == {first}
    assert len(log.lines) == BURST + 1
    log.drain()
    told = log.lines[-1]
    assert (told.count, told.ref, told.path, told.authority) == (5000, first, "", "evil.example:443")
    assert log.counted == BURST + 5001
    assert log.lines[log.ids.index(first)].path == "/first"


def test_another_refusal_in_a_flood_is_written_whole() -> None:
    """A flood of one kind must not hide the one refusal that matters."""
    log = Log()
    for _ in range(BURST + 5000):
        log.put(refusal())
    log.put(refusal("metadata.google.internal:80", "/computeMetadata/v1/"))
    log.put(refusal(reason=Reason.PATH_NOT_ALLOWED))
    assert [line.authority for line in log.lines[-2:]] == ["metadata.google.internal:80", "evil.example:443"]
    assert all(not line.count for line in log.lines[-2:])


def test_a_flood_to_ever_other_hosts_is_bounded_too() -> None:
    log = Log()
    seconds, each = 30, 5000
    for number in range(seconds * each):
        log.put(refusal(f"h{number}.evil.example:443"), after=1 / each)
    log.drain()
    assert log.counted == seconds * each
    assert len(log.lines) <= BURST + seconds * (RATE + 2 * (KINDS + 1))
    lumped = [line for line in log.lines if line.count and not line.authority]
    assert lumped
    assert all("various destinations" in line.detail and line.reason is Reason.HOST_NOT_ALLOWED for line in lumped)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from([Reason.HOST_NOT_ALLOWED, Reason.PORT_NOT_ALLOWED]),
            st.sampled_from([0.0, 0.001, 0.06, 1.5, 100.0]),
            st.integers(1, 700),
        ),
        max_size=20,
    )
)
def test_nothing_goes_uncounted(steps: list[tuple[str, Reason, float, int]]) -> None:
    log = Log()
    given_: collections.Counter[tuple[str, Reason]] = collections.Counter()
    for host, reason, after, times in steps:
        for number in range(times):
            identity = log.put(refusal(host, reason=reason), after=0.0 if number else after)
            alike = log.lines[log.ids.index(identity)]
            assert (alike.authority, alike.reason, alike.count) == (host, reason, 0)
        given_[host, reason] += times
    log.drain()
    counted: collections.Counter[tuple[str, Reason]] = collections.Counter()
    for line in log.lines:
        assert line.reason is not None
        counted[line.authority, line.reason] += line.count or 1
    assert counted == given_


def knock(where: tuple[str, int], times: int) -> None:
    """Ask for what is refused. Ports of clients that are closed at once would run out: a reset frees them."""
    for _ in range(times):
        with socket.create_connection(where, 20) as sock:
            sock.sendall(b"GET /secret-flood HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            assert read_all(sock).startswith(b"HTTP/1.1 403")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.live
@in_world
async def test_a_payload_cannot_fill_the_log_with_refusals(world: World) -> None:
    clients, each = 8, 250

    def flood(where: tuple[str, int]) -> None:
        with ThreadPoolExecutor(clients, initializer=world._enter) as pool:
            list(pool.map(lambda _: knock(where, each), range(clients)))

    async with world.broker(""):
        where = await world.inside(look_up, "evil.example"), 80
        await world.inside(flood, where)
        finished = await world.finish()
        refused: list[dict[str, Any]] = world.records()
        assert sum(one.get("count", 1) for one in refused) == clients * each == finished.denied
        assert len(refused) < clients * each
        written = {one["id"] for one in refused if "count" not in one}
        assert all(one["ref"] in written for one in refused if "count" in one)
