import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from broker.audit.directory import open_directory
from broker.audit.errors import UnknownRecord
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.keys import microseconds
from broker.audit.log import AuditLog, LogSettings
from broker.audit.neighbours import show
from broker.audit.questions import BadQuestion, Filter, every, parse_moment, search, summarise
from broker.audit.records import Entry, Kind, Record, Verdict
from broker.audit.timeline import covering, partners, timeline
from broker.policy.reasons import Reason
from tests.broker.audit.logs import decision, files, lines, write_log

START = 1_700_000_000_000_000  # microseconds since the epoch: 2023-11-14T22:13:20Z


@contextlib.contextmanager
def index_of(directory: Path) -> Iterator[AuditIndex]:
    descriptor = open_directory(directory, reading=True)
    try:
        with AuditIndex.open(descriptor, directory / INDEX_NAME) as index:
            index.refresh()
            yield index
    finally:
        os.close(descriptor)


def write_at(directory: Path, *records: tuple[int, Record]) -> list[str]:
    """Write records at times given in seconds after the start; return their ids."""
    now = (START + (records[0][0] if records else 0) * 1_000_000) * 1000
    log = AuditLog.open(directory, settings=LogSettings(clock=lambda: now))
    ids = []
    for second, record in records:
        now = (START + second * 1_000_000) * 1000
        ids.append(log.append(record))
    log.close(sign=False)
    return ids


def found(index: AuditIndex, **wanted: object) -> list[str]:
    entries = search(index, Filter(kind="decision", **wanted), limit=100).entries  # type: ignore[arg-type]
    return [entry.id.rpartition("-")[2] for entry in entries]


@pytest.fixture
def corpus(directory: Path) -> Path:
    write_at(
        directory,
        (1, decision(1, session="s-1", host="api.example.com")),
        (2, decision(2, session="s-1", host="example.com")),
        (3, decision(3, session="s-2", host="notexample.com", allow=False)),
        (4, decision(4, session="s-2", host="a.b.example.com", allow=False)),
        (
            5,
            Record(
                kind=Kind.DECISION,
                session="s-3",
                call="c-5",
                grant="g-5",
                method="POST",
                authority="[2001:db8::1]:443",
                path="/Upload_100%",
                verdict=Verdict.FAILURE,
                reason=Reason.CONNECT_REFUSED,
                detail="the peer said no",
            ),
        ),
        (
            6,
            Record(
                kind=Kind.DECISION, session="s-3", authority="192.0.2.7:80", verdict=Verdict.DENY, reason=Reason.SELF
            ),
        ),
    )
    return directory


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({}, "654321"),
        ({"session": "s-1"}, "21"),
        ({"session": "s-"}, ""),
        ({"call": "c-5"}, "5"),
        ({"grant": "g-1"}, "4321"),
        ({"verdict": "deny"}, "643"),
        ({"verdict": "failure"}, "5"),
        ({"verdict": "allow"}, "21"),
        ({"reason": "host_not_allowed"}, "43"),
        ({"reason": "rule_allow"}, "21"),
        ({"reason": "self", "verdict": "deny"}, "6"),
        ({"rule": "project-api"}, "21"),
        ({"method": "post"}, "5"),
        ({"host": "example.com"}, "421"),
        ({"host": "EXAMPLE.com."}, "421"),
        ({"host": "b.example.com"}, "4"),
        ({"host": "com"}, "4321"),
        ({"host": "xample.com"}, ""),
        ({"host": "[2001:db8::1]"}, "5"),
        ({"host": "192.0.2.7"}, "6"),
        ({"host": "2.7"}, ""),
        ({"since": START + 5_000_000}, "65"),
        ({"until": START + 2_000_000}, "1"),
        ({"since": START + 2_000_000, "until": START + 4_000_000}, "32"),
        ({"text": "upload"}, "5"),
        ({"text": "100%"}, "5"),
        ({"text": "Upload_100"}, "5"),
        ({"text": "Upload1100"}, ""),
        ({"text": "SAID NO"}, "5"),
        ({"text": "b.example"}, "4"),
        ({"text": "'; DROP TABLE records; --"}, ""),
        ({"session": "s-2", "host": "example.com", "verdict": "deny"}, "4"),
    ],
)
def test_search(corpus: Path, wanted: dict[str, object], numbers: str) -> None:
    with index_of(corpus) as index:
        assert "".join(found(index, **wanted)) == numbers


def test_pages_stay_the_same_while_records_come_in(directory: Path) -> None:
    write_at(directory, *((second // 3, decision(second)) for second in range(25)))
    with index_of(directory) as index:
        first = search(index, Filter(kind="decision"), limit=10)
        write_at(directory, *((100 + second, decision(second)) for second in range(5)))
        index.refresh()
        second = search(index, Filter(kind="decision"), limit=10, page=first.next_page)
        third = search(index, Filter(kind="decision"), limit=10, page=second.next_page)
    calls = [entry.call for page in (first, second, third) for entry in page.entries]
    assert calls == [f"call-{number}" for number in reversed(range(25))]
    assert third.next_page == ""


@pytest.mark.parametrize("page", ["x", "1.2", "1.2.x", "1.2.3.4", "-1.2.3", "1.2.99999999999999999999"])
def test_a_bad_page_mark_is_refused(corpus: Path, page: str) -> None:
    with index_of(corpus) as index, pytest.raises(BadQuestion):
        search(index, Filter(), page=page)


def test_a_search_whose_time_is_up_tells_what_it_has_and_goes_on(directory: Path) -> None:
    """File by file: what no lookup answers costs as much a page as one file, however long the log is."""
    for file in range(6):
        write_at(directory, *((file * 10 + second, decision(file * 10 + second)) for second in range(5)))
    pages, mark = [], ""
    with index_of(directory) as index:
        for _ in range(20):
            page = search(index, Filter(kind="decision", text="example"), limit=50, page=mark, seconds=0.0)
            pages.append([entry.call for entry in page.entries])
            mark = page.next_page
            if not mark:
                break
        whole = search(index, Filter(kind="decision", text="example"), seconds=None)
    assert [len(page) for page in pages] == [5, 5, 5, 5, 5, 5, 0]
    assert [call for page in pages for call in page] == [entry.call for entry in whole.entries]
    assert len(whole.entries) == 30
    assert whole.next_page == ""


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_files_that_overlap_in_time_are_searched_whole_and_in_order(data: st.DataObject) -> None:
    """Several brokers write at once, and a clock may be set back."""
    times = data.draw(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), min_size=1, max_size=5))
    since, until = (data.draw(st.none() | st.integers(0, 31)) for _ in range(2))
    limit, seconds = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([0.0, None]))
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        for seconds_of_file in times:
            write_at(directory, *((second, decision(second)) for second in seconds_of_file))
        bounds = [None if one is None else START + one * 1_000_000 for one in (since, until)]
        wanted = Filter(kind="decision", since=bounds[0], until=bounds[1])
        found, mark = [], ""
        with index_of(directory) as index:
            while True:
                page = search(index, wanted, limit=limit, page=mark, seconds=seconds)
                found += [(entry.time, entry.id) for entry in page.entries]
                assert len(page.entries) <= limit
                mark = page.next_page
                if not mark:
                    break
    expected = [
        second
        for file in times
        for second in file
        if (since is None or second >= since) and (until is None or second < until)
    ]
    assert len(set(found)) == len(found) == len(expected)
    assert [time for time, _ in found] == sorted((time for time, _ in found), reverse=True)


def test_every_is_oldest_first_and_merges_logs_by_time(directory: Path) -> None:
    write_at(directory, (1, decision(1)), (5, decision(5)))
    write_at(directory, (2, decision(2)), (4, decision(4)))
    with index_of(directory) as index:
        assert [entry.call for entry in every(index, Filter(kind="decision"))] == [
            "call-1",
            "call-2",
            "call-4",
            "call-5",
        ]


def test_summary(directory: Path) -> None:
    close = Record(kind=Kind.CLOSE, session="s-1", authority="api.example.com:443", bytes_up=10, bytes_down=2000)
    progress = Record(kind=Kind.PROGRESS, session="s-1", authority="api.example.com:443", bytes_up=9, bytes_down=900)
    write_at(
        directory,
        (1, decision(1)),
        (2, progress),
        (3, close),
        (4, decision(2)),
        (5, close),
        (6, decision(3, allow=False)),
        (7, decision(4, host="other.example")),
        (8, decision(6)),
        (8, Record(kind=Kind.CLOSE, session="s-1", authority="api.example.com:443", verdict=Verdict.DENY)),
        (9, decision(5, session="s-2", host="other.example", allow=False)),
    )
    with index_of(directory) as index:
        rows = [
            (row.session, row.host, row.allowed, row.denied, row.failures, row.bytes_up, row.bytes_down)
            for row in summarise(index, Filter())
        ]
        first, last = next((row.first, row.last) for row in summarise(index, Filter(session="s-1")))
    assert rows == [
        ("s-2", "other.example", 0, 1, 0, 0, 0),
        ("s-1", "api.example.com", 2, 2, 0, 20, 4000),
        ("s-1", "other.example", 1, 0, 0, 0, 0),
    ]
    assert (first, last) == (START + 1_000_000, START + 8_000_000)


def added_up(entries: Iterator[Entry]) -> dict[tuple[str, str], list[int]]:
    """A summary, counted one record after the other."""
    rows: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        host, at = entry.authority.rpartition(":")[0], microseconds(entry.time)
        if entry.kind not in {"decision", "close"} or not host:
            continue
        row = rows.setdefault((entry.session, host), [0, 0, 0, 0, 0, at, at])
        row[0] += (entry.kind == "decision") * (entry.verdict == "allow")
        row[0] -= (entry.kind == "close") * (entry.verdict == "deny")
        row[1] += (entry.verdict == "deny") * (entry.count or 1)
        row[2] += entry.verdict == "failure"
        row[3] += (entry.kind == "close") * entry.bytes_up
        row[4] += (entry.kind == "close") * entry.bytes_down
        row[5:] = min(row[5], at), max(row[6], at)
    return rows


def random_record(chance: random.Random) -> Record:
    kind = chance.choice((Kind.DECISION, Kind.CLOSE, Kind.PROGRESS))
    return Record(
        kind=kind,
        session=f"s-{chance.randrange(3)}",
        authority=chance.choice(("api.example.com:443", "example.com:443", "other.example:80", "")),
        verdict=chance.choice((Verdict.ALLOW, Verdict.DENY, Verdict.FAILURE, None)),
        bytes_up=chance.randrange(100),
        bytes_down=chance.randrange(10_000),
        count=chance.choice((0, 0, 7)),
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_summary_adds_up_what_every_record_says(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    now = START * 1000

    def write(log: AuditLog, count: int) -> None:
        nonlocal now
        for _ in range(count):
            now += chance.randrange(1, 3) * 1_000_000_000
            log.append(random_record(chance))
        log.flush()

    wanted = [Filter(), Filter(session="s-1"), Filter(host="example.com"), Filter(session="s-2", host="other.example")]
    for _ in range(12):
        begin, end = sorted(START + chance.randrange(0, 500) * 1_000_000 for _ in range(2))
        wanted += [Filter(since=begin), Filter(until=end), Filter(since=begin, until=end, host="api.example.com")]
    wanted += [Filter(verdict="deny"), Filter(kind="close", since=START + 90_000_000)]
    settings = LogSettings(clock=lambda: now, max_bytes=3000)
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(AuditLog.open(directory, settings=settings)) for _ in range(3)]
        index = stack.enter_context(index_of(directory))
        for _ in range(20):  # files that grow and files that are finished, taken in piece by piece
            write(chance.choice(logs), chance.randrange(30))
            index.refresh()
        first, *_ = (path for path in sorted(directory.glob("*.jsonl")) if ".open." not in path.name)
        for gone in (False, True):
            if gone:
                first.unlink()
                index.refresh()
            for one in wanted:
                found_ = {
                    (row.session, row.host): [
                        row.allowed, row.denied, row.failures, row.bytes_up, row.bytes_down, row.first, row.last
                    ]
                    for row in summarise(index, one)
                }  # fmt: skip
                assert found_ == added_up(every(index, one)), (gone, one)
        spans = index.database.execute("SELECT count(*) FROM files WHERE first IS NOT NULL").fetchone()
        assert spans[0] > 6


def test_a_summary_of_whole_files_reads_no_record(corpus: Path) -> None:
    with index_of(corpus) as index:
        expected = summarise(index, Filter())
        assert expected
        index.database.execute("DELETE FROM records")
        assert summarise(index, Filter()) == expected
        assert summarise(index, Filter(since=START)) == expected


def test_show_gives_the_neighbours_and_what_their_hashes_prove(directory: Path) -> None:
    name = write_log(directory, 30, max_bytes=2500)
    with index_of(directory) as index:
        for number in range(1, 30):
            found_ = show(index, f"{name}-{number}")
            assert (found_.linked, found_.next_linked) == (True, True), number
        assert found_.previous is not None
        end = show(index, f"{name}.1")
        assert (end.previous, end.linked) == (None, True)


def test_show_crosses_files(directory: Path) -> None:
    name = write_log(directory, 30, max_bytes=2500)
    with index_of(directory) as index:
        opened = show(index, f"{name}.2")
    assert opened.previous is not None
    assert opened.previous.event == "rotated"
    assert opened.linked


def test_show_says_when_the_links_do_not_hold(directory: Path) -> None:
    name = write_log(directory, 5)
    file = files(directory)[0]
    file.write_bytes(file.read_bytes().replace(b"/items/3", b"/items/9"))
    with index_of(directory) as index:
        assert not show(index, f"{name}-3").linked
        assert show(index, f"{name}-2").next_linked is False
        assert show(index, f"{name}-2").linked
        with pytest.raises(UnknownRecord):
            show(index, f"{name}-999")


def test_the_index_takes_in_only_what_is_new(directory: Path) -> None:
    log = AuditLog.open(directory)
    log.append(decision(1))
    log.flush()
    with index_of(directory) as index:
        assert index.refresh() == 0
        log.append(decision(2))
        log.append(decision(3))
        log.flush()
        assert index.refresh() == 2
        log.close(sign=False)  # the file changes its name
        assert index.refresh() == 1
        assert found(index) == ["3", "2", "1"]


def test_half_a_line_waits(directory: Path) -> None:
    write_log(directory, 3)
    file = files(directory)[0]
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    with index_of(directory) as index:
        before = len(search(index, Filter()).entries)
        with file.open("ab") as end:
            end.write(content[-20:])
        assert index.refresh() == 1
        assert len(search(index, Filter()).entries) == before + 1


def test_a_deleted_index_is_rebuilt(corpus: Path) -> None:
    with index_of(corpus) as index:
        before = found(index)
    for path in corpus.glob(f"{INDEX_NAME}*"):
        path.unlink()
    with index_of(corpus) as index:
        assert found(index) == before


@pytest.mark.parametrize("damage", ["noise", "version", "empty", "cut"])
def test_a_damaged_index_is_rebuilt(corpus: Path, damage: str) -> None:
    with index_of(corpus) as index:
        before = found(index)
    path = corpus / INDEX_NAME
    match damage:
        case "noise":
            path.write_bytes(b"not a database" * 1000)
        case "version":
            with contextlib.closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA user_version = 99")
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(path.read_bytes()[:5000])
    with index_of(corpus) as index:
        assert found(index) == before


def test_records_of_a_deleted_log_are_forgotten(directory: Path) -> None:
    write_at(directory, (1, decision(1)))
    old = files(directory)[0]
    write_at(directory, (2, decision(2)))
    with index_of(directory) as index:
        old.unlink()
        index.refresh()
        assert len(found(index)) == 1


def test_what_is_disposed_of_during_a_question_is_left_out_of_its_answer(directory: Path) -> None:
    """Retention goes on while somebody exports or replays a long log, and while a page is made."""
    write_at(directory, (1, decision(1)))
    old = files(directory)[0]
    write_at(directory, (2, decision(2)))
    with index_of(directory) as index:
        kept, first = search(index, Filter(kind="decision")).entries
        index._close_files()
        old.unlink()
        assert search(index, Filter(kind="decision")).entries == (kept,)
        assert [entry.call for entry in every(index, Filter(kind="decision"))] == ["call-2"]
        assert [one.entry.call for one in timeline(index, "s-1", limit=9).exchanges] == ["call-2"]
        assert partners(index, structs.replace(kept, ref=first.id)) == ()
        assert covering(index, first.id) is None
        assert show(index, kept.id).linked
        with pytest.raises(UnknownRecord):
            show(index, first.id)


def test_a_replaced_log_is_read_anew(corpus: Path) -> None:
    with index_of(corpus) as index:
        file = files(corpus)[0]
        content = b"".join(line + b"\n" for line in file.read_bytes().splitlines()[:3])
        file.unlink()
        file.write_bytes(content)
        index.refresh()
        assert found(index) == ["2", "1"]


def test_damaged_lines_do_not_stop_the_index(corpus: Path) -> None:
    file = files(corpus)[0]
    bad = [b"noise", b"{}", b"\x00\x00", b"[1]", b'{"id":1}', b'{"id":"a","time":"x","kind":"y"}', b'"\xff"', b""]
    big = b'{"id":"a","time":"2023-01-01T00:00:00Z","kind":"close","bytes_up":99999999999999999999}'
    file.write_bytes(b"\n".join([*bad, big]) + b"\n" + file.read_bytes())
    with index_of(corpus) as index:
        assert found(index) == ["6", "5", "4", "3", "2", "1"]


def test_endless_lines_do_not_stop_the_index(directory: Path) -> None:
    """A hole in a file is one line of zeros: it is passed over in bounded memory, and what follows is taken in."""
    write_log(directory, 5)
    file = files(directory)[0]
    whole = file.read_bytes()
    hole = 300 * 1024 * 1024
    with file.open("r+b") as log:
        log.truncate(len(whole) + hole)
        log.seek(0, os.SEEK_END)
        log.write(b"\n" + whole.replace(b"call-", b"later-"))
        log.truncate(log.tell() + hole)
    tracemalloc.start()
    try:
        with index_of(directory) as index:
            assert found(index, call="later-5") == ["5"]
            assert index.refresh() == 0
        assert tracemalloc.get_traced_memory()[1] < hole // 4
    finally:
        tracemalloc.stop()


def test_two_indexers_at_once_take_each_record_once(corpus: Path) -> None:
    with index_of(corpus) as one, index_of(corpus) as other:
        write_log(corpus, 5)
        assert one.refresh() + other.refresh() == 7
        assert len(found(one)) == len(found(other)) == 11


def test_opening_an_index_takes_no_lock_from_one_that_is_open(corpus: Path) -> None:
    """Without its lock another process takes itself for the last one, and writes the log ahead back under a reader."""
    shared = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)"
    with index_of(corpus) as index:
        for _ in range(2):
            other = subprocess.run(
                [sys.executable, "-c", shared, corpus / INDEX_NAME], capture_output=True, check=False
            )
            assert b"BlockingIOError" in other.stderr
            with index_of(corpus) as second:
                assert found(second) == found(index)


def test_an_index_that_is_being_written_is_opened_at_once(corpus: Path) -> None:
    """Who waits for the lock, and goes without the file when it does not come, reads a long log anew in memory."""
    with index_of(corpus) as index:
        index.database.execute("BEGIN IMMEDIATE")
        descriptor = open_directory(corpus, reading=True)
        with AuditIndex.open(descriptor, corpus / INDEX_NAME) as other:
            assert found(other) == found(index)
        os.close(descriptor)
        index.database.execute("ROLLBACK")


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_no_index(corpus: Path, kind: str) -> None:
    place = corpus / INDEX_NAME
    match kind:
        case "link":
            place.symlink_to(corpus / "elsewhere")
        case "directory":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
    with index_of(corpus) as index:
        assert len(found(index)) == 6
    assert not place.is_file()


def test_an_index_is_for_its_owner_alone(corpus: Path) -> None:
    with index_of(corpus) as index:
        index.refresh()
        assert {path.stat().st_mode & 0o777 for path in corpus.glob(f"{INDEX_NAME}*")} == {0o600}


def test_a_directory_that_cannot_be_written_is_asked_in_memory(corpus: Path) -> None:
    descriptor = open_directory(corpus, reading=True)
    with AuditIndex.open(descriptor, Path("/proc/index.sqlite3")) as index:
        index.refresh()
        assert len(found(index)) == 6
    os.close(descriptor)


def test_a_bulk_build_ends_with_all_lookups(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.audit.index._BULK_BYTES", 100)
    write_log(directory, 20)
    with index_of(directory) as index:
        names = {row[0] for row in index.database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert {"by_id", "by_session", "by_host", "by_refusal", "by_call", "by_grant"} <= names
        assert len(found(index, session="s-1")) == 20


@pytest.mark.parametrize(
    ("wanted", "lookup"),
    [
        (Filter(session="s"), "by_session"),
        (Filter(call="c"), "by_call"),
        (Filter(grant="g"), "by_grant"),
        (Filter(host="example.com"), "by_host"),
        (Filter(verdict="deny"), "by_refusal"),
        (Filter(reason="host_not_allowed"), "by_reason"),
    ],
)
def test_frequent_questions_use_a_lookup(corpus: Path, wanted: Filter, lookup: str) -> None:
    with index_of(corpus) as index:
        plans: list[str] = []
        index.database.set_trace_callback(plans.append)
        search(index, wanted)
        index.database.set_trace_callback(None)
        questions = [statement for statement in plans if "ORDER BY time DESC" in statement]
        found = [index.database.execute(f"EXPLAIN QUERY PLAN {question}").fetchall() for question in questions]
    assert len(found) == 2, "one of the file's stretch of time, one of what is older"
    for plan in found:
        assert any(lookup in str(step) for step in plan), plan


NOW = datetime(2024, 1, 10, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-10T12:00:00Z", "2024-01-10T12:00:00Z"),
        ("2024-01-10T14:00:00+02:00", "2024-01-10T12:00:00Z"),
        ("2024-01-10", "2024-01-10T00:00:00Z"),
        ("2024-01-10T12:00:00.5", "2024-01-10T12:00:00.5Z"),
        ("90s", "2024-01-10T11:58:30Z"),
        ("15m", "2024-01-10T11:45:00Z"),
        ("2h", "2024-01-10T10:00:00Z"),
        ("7d", "2024-01-03T12:00:00Z"),
        ("1w", "2024-01-03T12:00:00Z"),
    ],
)
def test_parse_moment(text: str, expected: str) -> None:
    assert parse_moment(text, NOW) == microseconds(expected)


@pytest.mark.parametrize("text", ["", "yesterday", "5", "2024-13-01", "-5m", "5y", "0001-01-01T00:00:00+14:00"])
def test_a_bad_moment_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(BadQuestion, match="15m, 2h, 7d"):
        parse_moment(text, NOW)


def test_a_host_that_most_records_name_is_searched_by_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.audit.questions._RARE", 5)
    write_log(directory, 20)
    with index_of(directory) as index:
        assert found(index, host="example.com")[:3] == ["20", "19", "18"]
        assert len(found(index, host="example.com")) == 20


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("evil.example.", "evil.example"), ("evil.example", "evil.example."), ("0.pool.example", "pool.example")],
)
def test_a_host_is_found_however_it_was_written(directory: Path, asked: str, wanted: str) -> None:
    with AuditLog.open(directory) as log:
        log.append(Record(kind=Kind.DECISION, session="s", authority=f"{asked}:443", verdict=Verdict.DENY))
    with index_of(directory) as index:
        assert len(search(index, Filter(host=wanted)).entries) == 1
        assert [row.host for row in summarise(index, Filter())] == [asked.rstrip(".")]


def test_every_line_of_the_log_is_in_the_index(directory: Path) -> None:
    write_log(directory, 30, max_bytes=2500)
    with index_of(directory) as index:
        assert index.database.execute("SELECT COUNT(*) FROM records").fetchone()[0] == len(lines(directory))


def test_a_record_that_stands_for_many_counts_for_all(directory: Path) -> None:
    with AuditLog.open(directory) as log:
        first = log.append(decision(1, allow=False))
        log.append(structs.replace(decision(1, allow=False), ref=first, count=499))
        assert log.counts.denied == 500
    with index_of(directory) as index:
        (row,) = summarise(index, Filter())
        assert (row.denied, row.allowed) == (500, 0)
        assert [entry.count for entry in search(index, Filter()).entries if entry.kind == "decision"] == [499, 0]
