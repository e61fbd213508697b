"""Portions of frames: the octets stay what they were, however they were read, and each portion is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from broker.wire.http2.portions import FRAMES, Portions
from tests.broker.gateway.h2_peers import PREFACE, frame_of

PING = frame_of(6, 0, bytes(8))


@st.composite
def read(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """A connection's octets and where the reads end."""
    frames = draw(st.lists(st.integers(0, 30).map(lambda size: frame_of(0, 1, bytes(size))), max_size=400))
    octets = PREFACE + b"".join(frames) + draw(st.binary(max_size=12))
    ends = draw(st.lists(st.integers(0, len(octets)), max_size=20))
    return octets, [*sorted(ends), len(octets)]


@given(read())
def test_every_octet_comes_once_and_in_order(case: tuple[bytes, list[int]]) -> None:
    octets, ends = case
    portions, got, begin = Portions(len(PREFACE)), b"", 0
    for end in ends:
        for portion in portions.of(octets[begin:end]):
            assert portion
            got += portion
        begin = end
        assert octets[:end].startswith(got)
        assert len(got) + 3 > end


@given(st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_a_portion_has_a_bounded_number_of_frames(reads: list[int]) -> None:
    portions = Portions()
    for count in reads:
        sizes = [len(portion) // len(PING) for portion in portions.of(PING * count)]
        assert sum(sizes) == count
        assert max(sizes) <= FRAMES


def test_octet_by_octet() -> None:
    portions = Portions()
    got = [portion for octet in PING * 2 for portion in portions.of(bytes([octet]))]
    assert b"".join(got) == PING * 2
