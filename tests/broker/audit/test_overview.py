import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from broker.audit import timeline as module
from broker.audit.directory import open_directory
from broker.audit.index import AuditIndex
from broker.audit.log import AuditLog
from broker.audit.overview import (
    SessionHosts,
    denied_hosts,
    newest_sessions,
    newest_time,
    session_hosts,
    session_row,
)
from broker.audit.questions import BadQuestion, Filter, summarise
from broker.audit.records import Kind, Record, Verdict
from broker.audit.timeline import covering, partners, timeline
from broker.audit.totals import Counts, Totals
from broker.policy.reasons import Reason
from tests.broker.audit.logs import decision, session_start

FAR = 2**62


@pytest.fixture
def written(directory: Path) -> tuple[str, ...]:
    """Three sessions: one with a close for each allow, one that was denied after its allow, one that did nothing."""
    with AuditLog.open(directory, max_bytes=4096) as log:
        ids = []
        for number in range(8):
            ref = log.append(decision(number, allow=number % 2 == 0))
            ids.append(ref)
            if number % 2 == 0:
                ids.append(log.append(close(ref, bytes_up=10, bytes_down=100, status=200)))
        ref = log.append(decision(9, session="s-2", host="private.example"))
        refused = close(ref, session="s-2", authority="private.example:443", verdict=Verdict.DENY)
        ids += [ref, log.append(structs.replace(refused, reason=Reason.ADDRESS_REFUSED))]
        log.append(structs.replace(decision(10, session="s-2", host="flood.example", allow=False), count=40))
        log.append(session_start("s-3"))
    return tuple(ids)


def close(ref: str, **values: object) -> Record:
    made = {"session": "s-1", "authority": "api.example.com:443", "reason": Reason.FINISHED, **values}
    return Record(kind=Kind.CLOSE, ref=ref, **made)  # type: ignore[arg-type]


@pytest.fixture
def index(directory: Path, written: tuple[str, ...]) -> Iterator[AuditIndex]:
    with AuditIndex.open(open_directory(directory, reading=True), None) as made:
        made.refresh()
        yield made


def test_the_session_that_was_active_last_comes_first(index: AuditIndex) -> None:
    found = newest_sessions(index, limit=10)
    assert [row.session for row in found.sessions] == ["s-3", "s-2", "s-1"]
    assert not found.next_page
    assert found.sessions[2].counts == Counts(allowed=4, denied=4, bytes_up=40, bytes_down=400)
    assert found.sessions[1].counts == Counts(allowed=0, denied=41)
    assert found.sessions[0].counts == Counts()
    assert found.sessions[2].calls[:2] == ("call-7", "call-6")
    assert found.sessions[2].grants == ("g-1",)
    assert found.sessions[2].first < found.sessions[2].last < found.sessions[0].last


def test_sessions_come_page_by_page(index: AuditIndex) -> None:
    names: list[str] = []
    page = ""
    while True:
        found = newest_sessions(index, limit=1, page=page)
        names += [row.session for row in found.sessions]
        page = found.next_page
        if not page:
            break
    assert names == ["s-3", "s-2", "s-1"]


@pytest.mark.parametrize("page", ["x", "1", ".s", "-1.s", "9" * 19 + ".s"])
def test_a_mark_that_is_none(index: AuditIndex, page: str) -> None:
    with pytest.raises(BadQuestion):
        newest_sessions(index, limit=1, page=page)


def test_a_session_that_is_not_there(index: AuditIndex) -> None:
    assert session_row(index, "s-9") is None
    assert session_row(index, "") is None


def test_the_hosts_of_a_session(index: AuditIndex) -> None:
    found = session_hosts(index, "s-2", limit=10)
    assert [(host.host, host.counts) for host in found.hosts] == [
        ("flood.example", Counts(denied=40)),
        ("private.example", Counts(denied=1)),
    ]
    assert found.more == 0
    assert found.hosts[1].first < found.hosts[1].last < found.hosts[0].first
    some = session_hosts(index, "s-2", limit=1)
    assert (some.hosts, some.more) == (found.hosts[:1], 1)
    assert session_hosts(index, "s-9", limit=1) == SessionHosts(hosts=(), more=0)


def test_a_session_of_very_many_hosts_costs_what_is_shown(directory: Path) -> None:
    """A payload under a wildcard chooses how many hosts it asks for: one value a host is 200 MB for a million."""
    with AuditLog.open(directory) as log, AuditIndex.open(open_directory(directory, reading=True), None) as index:
        log.append(decision())
        log.flush()
        index.refresh()
        index.database.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 50000) "
            "INSERT INTO sums SELECT 's-1', 'com.example.h' || x, 1, 0, 1, 0, 0, 0, 1, 1, 1 FROM n"
        )
        tracemalloc.start()
        try:
            row, hosts = session_row(index, "s-1"), session_hosts(index, "s-1", limit=200)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
    assert row is not None
    assert row.counts == Counts(allowed=1, denied=50_000)
    assert (len(hosts.hosts), hosts.more) == (200, 49_801)


def test_made_up_amounts_end_no_page(directory: Path) -> None:
    """Each is one that a record may hold; together they are more than SQLite's integers."""
    most = 2**62
    with AuditLog.open(directory) as log:
        for number in range(4):
            log.append(structs.replace(decision(number, allow=False), count=most))
            for host in ("a.example", "b.example", "c.example"):
                log.append(close("x", authority=f"{host}:443", bytes_up=most, bytes_down=most))
    with AuditIndex.open(open_directory(directory, reading=True), None) as index:
        index.refresh()
        second = index.database.execute("SELECT time FROM records WHERE kind = 'decision' LIMIT 1 OFFSET 1").fetchone()[
            0
        ]
        for since in (0, second):
            assert Totals().count(index, since).denied >= most
            assert {row.host for row in summarise(index, Filter(since=since))} >= {"a.example", "api.example.com"}
        assert sum(row.denied for row in summarise(index, Filter(kind="decision"))) >= most
        assert [row.counts.bytes_up >= most for row in newest_sessions(index, limit=9).sessions] == [True]
        assert denied_hosts(index, 0, limit=1).hosts[0].count >= most
        assert len(session_hosts(index, "s-1", limit=9).hosts) == 4


def test_denied_hosts_by_reason(index: AuditIndex) -> None:
    found = denied_hosts(index, 0, limit=10)
    assert [(row.host, row.reason, row.count, row.sessions) for row in found.hosts] == [
        ("flood.example", "host_not_allowed", 40, 1),
        ("api.example.com", "host_not_allowed", 4, 1),
        ("private.example", "address_refused", 1, 1),
    ]
    assert found.whole
    assert denied_hosts(index, FAR, limit=10).hosts == ()


def test_totals_are_what_a_summary_adds_up_to(index: AuditIndex) -> None:
    totals = Totals()
    times = [time for (time,) in index.database.execute("SELECT time FROM records ORDER BY time")]
    assert len(times) > 10
    for since, until in (
        (0, None),
        (times[3], None),
        (times[3], times[9]),
        (times[-1] + 1, None),
        (times[5], times[5]),
    ):
        rows = summarise(index, Filter(since=since, until=until))
        wanted = Counts(
            allowed=sum(row.allowed for row in rows),
            denied=sum(row.denied for row in rows),
            failures=sum(row.failures for row in rows),
            bytes_up=sum(row.bytes_up for row in rows),
            bytes_down=sum(row.bytes_down for row in rows),
        )
        assert totals.count(index, since, until) == wanted
        assert totals.count(index, since, until) == wanted  # from what is remembered


def test_what_is_remembered_of_a_file_ends_when_it_grows(directory: Path) -> None:
    totals = Totals()
    with AuditLog.open(directory) as log, AuditIndex.open(open_directory(directory, reading=True), None) as index:
        for number in range(1, 4):
            log.append(decision(number))
            log.flush()
            index.refresh()
            assert totals.count(index, 0).allowed == number


def test_a_timeline_joins_what_began_with_how_it_ended(index: AuditIndex, written: tuple[str, ...]) -> None:
    found = timeline(index, "s-1", limit=100)
    assert [one.entry.call for one in found.exchanges] == [f"call-{number}" for number in range(7, -1, -1)]
    assert [one.close is not None for one in found.exchanges] == [number % 2 == 0 for number in range(7, -1, -1)]
    assert found.exchanges[1].close is not None
    assert found.exchanges[1].close.ref == found.exchanges[1].entry.id
    paged: list[str] = []
    page = ""
    while True:
        part = timeline(index, "s-1", limit=3, page=page)
        paged += [one.entry.id for one in part.exchanges]
        assert all((one.close is not None) == (one.entry.verdict == "allow") for one in part.exchanges)
        page = part.next_page
        if not page:
            break
    assert paged == [one.entry.id for one in found.exchanges]


def test_a_timeline_of_what_was_refused(index: AuditIndex) -> None:
    assert {one.entry.verdict for one in timeline(index, "s-1", limit=100, refused=True).exchanges} == {"deny"}
    assert [one.entry.reason for one in timeline(index, "s-2", limit=100, refused=True).exchanges] == [
        "host_not_allowed",
        "address_refused",
    ]
    with pytest.raises(BadQuestion):
        timeline(index, "s-1", limit=1, page="x")


def test_what_was_refused_is_found_at_once_behind_whatever_was_allowed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_LINES", 50)
    with AuditLog.open(directory) as log:
        refused = log.append(decision(allow=False))
        for number in range(3000):
            log.append(decision(number))
    thousands = 0

    def count() -> int:
        nonlocal thousands
        thousands += 1
        return 0

    with AuditIndex.open(open_directory(directory, reading=True), None) as index:
        index.refresh()
        index.database.set_progress_handler(count, 1000)
        found = timeline(index, "s-1", limit=50, refused=True)
    assert [one.entry.id for one in found.exchanges] == [refused]
    assert thousands <= 1


def test_a_record_and_its_partner(index: AuditIndex, written: tuple[str, ...]) -> None:
    decided, closed, denied = written[:3]
    entries = {one.entry.id: one for one in timeline(index, "s-1", limit=100).exchanges}
    (ended,) = partners(index, entries[decided].entry)
    assert ended.id == closed
    assert [one.id for one in partners(index, ended)] == [decided]
    assert partners(index, entries[denied].entry) == ()


def test_the_checkpoint_that_covers_a_record_is_the_next_signed_one(
    index: AuditIndex, written: tuple[str, ...]
) -> None:
    found = covering(index, written[0])
    assert found is not None
    assert found.signature
    assert found.event in {"rotated", "interval", "closed"}
    assert covering(index, "nothing-1") is None


def test_the_newest_time(index: AuditIndex, directory: Path) -> None:
    assert newest_time(index) == max(time for (time,) in index.database.execute("SELECT time FROM records"))
    with AuditIndex.open(open_directory(directory, reading=True), None) as empty:
        assert newest_time(empty) == 0
