"""Grants over the end of a broker: what is on record is never more generous than what was used."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.control import schema
from broker.control.config import GrantLimits
from broker.control.grants import GrantBook
from broker.control.store import NAME, Ended, Store, StoreError
from broker.gateway.metering import Meter
from broker.policy.document import parse_policy
from broker.policy.grants import Spend
from broker.policy.reasons import Reason
from tests.broker.control.serving import POLICY

NOW = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Place:
    """A state directory, and the brokers that live and die on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.policy = parse_policy(POLICY, source="test")
        self.store = Store(directory)
        self.book = GrantBook(self.store, GrantLimits(), self.clock)

    def issue(self, **budgets: Any) -> str:
        request = schema.IssueGrant(
            allow=["api.example.com:443"], ttl_seconds=3600, budgets=schema.Budgets(**budgets), call="call-1"
        )
        return self.book.issue(request, self.policy, "test").id

    def meter(self, grant: str, session: str = "s-1") -> Meter:
        meter = self.book.find_meter(grant)
        assert meter is not None
        assert meter.admit(session) is None
        return meter

    def crash(self) -> None:
        """What a kill leaves: the files as they are now. SQLite's own lock goes with a process, so a copy stands in."""
        copy = self.directory / "copy"
        copy.mkdir(mode=0o700)
        for file in self.directory.glob(f"{NAME}*"):
            shutil.copy2(file, copy)
        self.store._database.close()
        for file in self.directory.glob(f"{NAME}*"):
            file.unlink()
        for file in copy.iterdir():
            file.rename(self.directory / file.name)
        copy.rmdir()
        self._open()

    def end(self) -> None:
        self.book.close()
        self._open()

    def _open(self) -> None:
        self.store = Store(self.directory)
        self.book = GrantBook(self.store, GrantLimits(), self.clock)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.book.close()


def spend(meter: Meter, what: Spend, times: int) -> int:
    return sum(meter.spend(what) is None for _ in range(times))


@pytest.mark.parametrize("budget", [1, 2, 63, 64, 100, 1000, 50_000])
@pytest.mark.parametrize("what", [Spend.REQUEST, Spend.CONNECTION])
def test_a_crash_loses_at_most_one_piece_and_gives_nothing(place: Place, budget: int, what: Spend) -> None:
    name = {Spend.REQUEST: "requests", Spend.CONNECTION: "connections"}[what]
    grant = place.issue(**{name: budget})
    first = spend(place.meter(grant), what, (budget + 1) // 2)
    assert first == (budget + 1) // 2
    place.crash()
    second = spend(place.meter(grant), what, budget)
    assert first + second <= budget
    assert first + second >= budget - max(budget // 64, 1)


@pytest.mark.parametrize("budgets", [{"rate": 0.001}, {"requests": 1}])
def test_what_is_refused_costs_nothing_of_another_budget(place: Place, budgets: dict[str, Any]) -> None:
    """A client that asks again and again on a rate that is used up must not use up its connections by it."""
    meter = place.meter(place.issue(connections=5, **budgets))
    spend(meter, Spend.REQUEST, 1)
    for _ in range(10):
        assert meter.spend(Spend.CONNECTION, Spend.REQUEST) is not None
    assert meter.usage.connections == 0
    assert spend(meter, Spend.CONNECTION, 10) == 5


def test_crash_after_crash_stays_within_the_budget(place: Place) -> None:
    grant = place.issue(requests=300)
    allowed = 0
    for _ in range(20):
        allowed += spend(place.meter(grant), Spend.REQUEST, 30)
        place.crash()
    assert 200 <= allowed <= 300


def test_bytes_are_reserved_ahead(place: Place) -> None:
    bound = 10_000_000
    grant = place.issue(bytes_up=bound)
    meter = place.meter(grant)
    moved = 0
    while moved < 3_000_000:
        room = min(meter.room_up, 65_536)
        assert room > 0
        meter.count_up(room)
        moved += room
    place.crash()
    after = place.meter(grant).usage.bytes_up
    assert moved <= after <= moved + max(bound // 16, 65_536)


@pytest.mark.parametrize("upward", [True, False])
@pytest.mark.parametrize("frame", [1, 999, 16_384, 16_383, 200_000])
def test_a_budget_of_bytes_is_spent_to_the_last_by_frames_of_any_size(place: Place, frame: int, upward: bool) -> None:
    """What is reserved ahead is no boundary: only the budget is."""
    budget = 1_000_003 if frame > 1 else 70_001
    grant = place.issue(**{"bytes_up" if upward else "bytes_down": budget})
    meter = place.meter(grant)
    taken = 0
    while meter.take(frame, upward=upward):
        taken += frame
    assert budget - frame < taken <= budget
    assert (meter.usage.bytes_up if upward else meter.usage.bytes_down) == budget
    assert not meter.take(1, upward=upward)


def test_use_is_exact_after_a_clean_end_and_after_the_last_session(place: Place) -> None:
    grant = place.issue(requests=1000, bytes_down=10**9)
    meter = place.meter(grant)
    spend(meter, Spend.REQUEST, 7)
    assert meter.room_down > 0
    meter.count_down(12_345)
    place.end()
    meter = place.meter(grant)
    assert (meter.usage.requests, meter.usage.bytes_down, meter.usage.uses) == (7, 12_345, 1)
    spend(meter, Spend.REQUEST, 3)
    meter.dismiss("s-1")
    place.crash()
    shown = place.book.show(grant)
    assert (shown.usage.requests, shown.usage.bytes_down) == (10, 12_345)


def test_a_session_that_comes_back_costs_no_use_and_one_that_ended_does(place: Place) -> None:
    grant = place.issue(uses=2)
    place.meter(grant, "s-1")
    place.crash()
    assert place.meter(grant, "s-1").usage.uses == 1
    place.book.find_meter(grant).dismiss("s-1")  # type: ignore[union-attr]
    assert place.meter(grant, "s-1").usage.uses == 2
    denied = place.book.find_meter(grant).admit("s-2")  # type: ignore[union-attr]
    assert denied is not None
    assert denied.reason is Reason.GRANT_EXHAUSTED


def test_sessions_that_never_came_back_are_forgotten(place: Place) -> None:
    grant = place.issue(uses=2)
    place.meter(grant, "s-1")
    place.crash()
    place.book.dismiss_absent([])
    assert place.meter(grant, "s-1").usage.uses == 2


def test_a_revocation_holds_over_a_crash(place: Place) -> None:
    grant = place.issue()
    assert place.book.revoke(grant) is not None
    assert place.book.revoke(grant) is None
    place.crash()
    denied = place.book.find_meter(grant).admit("s-1")  # type: ignore[union-attr]
    assert denied is not None
    assert denied.reason is Reason.GRANT_REVOKED
    assert place.book.show(grant).state is schema.GrantState.REVOKED


def test_when_the_machine_went_down_every_grant_ends(place: Place) -> None:
    grant = place.issue()
    place.store._set_meta("boot", "another boot")
    place.crash()
    assert place.store.ended is Ended.WITH_THE_MACHINE
    assert place.book.ended_with_the_machine == 1
    assert place.book.show(grant).state is schema.GrantState.REVOKED


def test_when_the_machine_went_down_a_clock_that_is_ahead_saves_no_grant(place: Place) -> None:
    grant = place.issue()
    place.store._set_meta("boot", "another boot")
    place.clock.now += 86_400
    place.crash()
    place.clock.now -= 86_400
    assert place.book.ended_with_the_machine == 1
    assert place.book.show(grant).state is schema.GrantState.REVOKED


def test_a_clean_end_before_a_boot_keeps_grants(place: Place) -> None:
    grant = place.issue()
    place.store._set_meta("boot", "another boot")
    place.end()
    assert place.store.ended is Ended.CLEANLY
    assert place.book.show(grant).state is schema.GrantState.ACTIVE


def test_a_rate_starts_empty_after_a_crash(place: Place) -> None:
    grant = place.issue(rate=2.0)
    meter = place.meter(grant)
    assert spend(meter, Spend.REQUEST, 5) == 2
    place.book.keep()
    place.crash()
    assert spend(place.meter(grant), Spend.REQUEST, 5) == 0
    place.clock.now += 0.5
    assert spend(place.meter(grant), Spend.REQUEST, 5) == 1


def test_a_clock_that_steps_back_does_not_stop_a_rate(place: Place) -> None:
    meter = place.meter(place.issue(rate=2.0))
    assert spend(meter, Spend.REQUEST, 5) == 2
    place.clock.now -= 1800
    assert spend(meter, Spend.REQUEST, 5) == 0
    place.clock.now += 0.5
    assert spend(meter, Spend.REQUEST, 5) == 1


def test_states(place: Place) -> None:
    grant = place.issue(requests=2)
    assert place.book.show(grant).state is schema.GrantState.ACTIVE
    spend(place.meter(grant), Spend.REQUEST, 2)
    assert place.book.show(grant).state is schema.GrantState.EXHAUSTED
    place.clock.now += 3600
    assert place.book.show(grant).state is schema.GrantState.EXPIRED
    place.book.revoke(grant)
    assert place.book.show(grant).state is schema.GrantState.REVOKED


async def test_lists_by_state_are_what_each_grant_shows(place: Place) -> None:
    made = [place.issue(requests=1) for _ in range(260)]
    for grant in made[::2]:
        place.book.revoke(grant)
    for grant in made[1::4]:
        spend(place.meter(grant), Spend.REQUEST, 1)
    place.clock.now += 3000
    late = [place.issue() for _ in range(3)]
    place.clock.now += 700
    later = [place.issue(requests=1) for _ in range(150)]
    spend(place.meter(later[7]), Spend.REQUEST, 1)
    everything = [place.book.show(grant) for grant in (*made, *late, *later)]
    for state in schema.GrantState:
        listed, after = [], None
        while True:
            page = await place.book.page(schema.GrantQuery(state=state, limit=40, after=after))
            listed += [one.id for one in page.grants]
            if (after := page.next) is None:
                break
        assert listed == [one.id for one in everything if one.state is state], state
        assert listed


async def test_what_ended_long_ago_is_forgotten(place: Place) -> None:
    old = place.issue()
    place.clock.now += 3600 + GrantLimits().retention_seconds - 1
    fresh = place.issue()
    assert place.book.prune() == 0
    place.clock.now += 2
    assert place.book.prune() == 1
    assert [one.id for one in (await place.book.page(schema.GrantQuery())).grants] == [fresh]
    assert place.book.find_meter(old) is None


@pytest.mark.parametrize(("retention", "every"), [(60, 60.0), (3600, 3600.0), (30 * 86_400, 3600.0)])
def test_what_is_kept_shortly_is_forgotten_as_often(place: Place, *, retention: int, every: float) -> None:
    assert GrantBook(place.store, GrantLimits(retention_seconds=retention), place.clock).prune_seconds == every


def test_use_that_cannot_be_kept_is_not_allowed(place: Place) -> None:
    grant = place.issue(requests=100, bytes_up=1_000_000)
    meter = place.meter(grant)
    reasons: list[Reason] = []
    meter.on_end = lambda _, reason: reasons.append(reason)
    place.store._database.execute("PRAGMA query_only = ON")
    denied = meter.spend(Spend.REQUEST)
    assert denied is not None
    assert denied.reason is Reason.AUDIT_UNAVAILABLE
    assert meter.usage.requests == 0
    assert meter.room_up == 0
    meter.exhausted()
    assert reasons == [Reason.AUDIT_UNAVAILABLE]
    place.store._database.execute("PRAGMA query_only = OFF")
    assert meter.spend(Spend.REQUEST) is None
    assert meter.room_up > 0


# ---- the file --------------------------------------------------------------------------------------------------------


def test_two_brokers_do_not_share_a_file(place: Place) -> None:
    code = "import sys; from pathlib import Path; from broker.control.store import Store; Store(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(place.directory)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "in use by another broker" in done.stderr


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    Store(tmp_path).close()
    (tmp_path / NAME).chmod(mode)
    with pytest.raises(StoreError, match="could have been written by others"):
        Store(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        Store(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_a_new_file_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store(tmp_path).close()
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {"0o600"}


def test_another_format_is_refused_and_kept(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / NAME) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="format 99"):
        Store(tmp_path)
    with sqlite3.connect(tmp_path / NAME) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (99,)
    database.close()


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read as one" * 100, b"\0" * 4096])
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    (tmp_path / NAME).chmod(0o600)
    with pytest.raises(StoreError):
        Store(tmp_path)
    assert (tmp_path / NAME).read_bytes() == content
