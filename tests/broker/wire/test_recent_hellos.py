"""A hello that is recognised comes to what parsing it comes to, wherever it differs from the one before."""

import random
import ssl
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.reasons import Reason, Refusal
from broker.wire.client_hello import LIMIT, ClientHello, parse_client_hello
from broker.wire.recent_hellos import MOST, RecentHellos
from tests.broker.wire.test_client_hello import CASES, REAL, raw_of, real_hello, records, vector

OTHER_OCTETS = (0x00, 0xFF)


def outcome(parse: Callable[..., ClientHello | None], data: bytes, limit: int = LIMIT) -> ClientHello | Reason | None:
    try:
        return parse(data, limit=limit)
    except Refusal as refusal:
        return refusal.reason


def primed(data: bytes, limit: int = LIMIT) -> RecentHellos:
    recent = RecentHellos()
    outcome(recent.parse, data, limit)
    return recent


AGAIN: dict[str, Callable[[], bytes]] = {
    "tls13": lambda: real_hello(alpn=("h2", "http/1.1")),
    "tls12": lambda: real_hello(maximum=ssl.TLSVersion.TLSv1_2),
    "nameless": lambda: real_hello(name=None),
}


@pytest.mark.parametrize("name", AGAIN)
def test_the_next_hello_of_a_client_is_recognised(name: str) -> None:
    recent = RecentHellos()
    first, second = AGAIN[name](), AGAIN[name]()
    assert first != second
    known = recent.parse(first, limit=LIMIT)
    assert known is not None
    assert recent.parse(second, limit=LIMIT) is known
    assert recent.parse(second + b"more", limit=LIMIT) is known
    assert recent.parse(second[:-1], limit=LIMIT) is None


@pytest.mark.parametrize("name", REAL)
def test_every_octet_that_differs_counts_as_it_does_when_parsed(name: str) -> None:
    data = REAL[name]
    recent = primed(data)
    chance = random.Random(name)
    for at in range(len(data)):
        for octet in (*OTHER_OCTETS, data[at] ^ 1 << chance.randrange(8)):
            other = data[:at] + bytes([octet]) + data[at + 1 :]
            assert outcome(recent.parse, other) == outcome(parse_client_hello, other), at
            recent = primed(data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_the_table_comes_to_the_same_behind_a_good_hello_and_behind_itself(case: dict[str, object]) -> None:
    data = raw_of(case)
    alike = records(REAL["tls13"][5:], [])
    for before in (alike, data):
        assert outcome(primed(before).parse, data) == outcome(parse_client_hello, data)


@given(st.sampled_from(list(REAL)), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6))
def test_several_octets(name: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(REAL[name])
    for at, octet in changes:
        data[at % len(data)] = octet
    assert outcome(primed(REAL[name]).parse, bytes(data)) == outcome(parse_client_hello, bytes(data))


def test_a_smaller_limit_is_held() -> None:
    data = REAL["tls13"]
    recent = primed(data)
    assert outcome(recent.parse, data, 100) is Reason.CLIENT_HELLO_TOO_LARGE


def test_a_hello_in_several_records_is_parsed() -> None:
    data = REAL["tls13"]
    split = records(data[5:], [9, 200])
    recent = primed(split)
    assert outcome(recent.parse, split) == parse_client_hello(split)
    # The first record of the split one has the length of another hello: nothing may be taken over from it.
    short = b"\x16\x03\x01" + vector(2, data[5:209])
    assert outcome(primed(data).parse, short + split[209:]) == outcome(parse_client_hello, short + split[209:])


def test_what_is_remembered_is_bounded() -> None:
    recent = RecentHellos()
    for size in range(3 * MOST):
        assert recent.parse(real_hello(name=f"{'a' * (size + 1)}.example"), limit=LIMIT) is not None
    assert len(recent._shapes) <= MOST
