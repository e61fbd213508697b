"""Body readers by table and property: any segmentation of a body sends the same octets, or is refused."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.bodies import CHUNKED, NO_BODY, UNTIL_CLOSE, Length
from broker.wire.http1.faults import CLIENT, UPSTREAM
from broker.wire.http1.framing import BodyReader, ChunkedReader, CloseReader, LengthReader, reader_for
from broker.wire.http1.limits import DEFAULT_LIMITS, Limits

CASES = tomllib.loads((Path(__file__).parents[3] / "cases" / "http1_chunked.toml").read_text())
TAIL = b"GET / HTTP/1.1\r\n\r\n"


def _rows(key: str) -> list[Any]:
    return [pytest.param(*(cell.encode("latin-1") for cell in row[1:]), id=row[0]) for row in CASES[key]]


def run(reader: BodyReader, segments: list[bytes]) -> tuple[bytes, bytes]:
    """Feed segments; what was sent, and what was left over."""
    sent, rest = b"", b""
    for segment in segments:
        if reader.done:
            rest += segment
            continue
        fed = reader.feed(memoryview(segment))
        assert fed.done is reader.done
        assert fed.done or fed.consumed == len(segment)
        sent += b"".join(fed.pieces)
        rest += segment[fed.consumed :]
    return sent, rest


def octets_of(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@pytest.mark.parametrize(("received", "sent", "data"), _rows("passed"))
def test_a_chunked_body_is_sent_in_its_canonical_form(received: bytes, sent: bytes, data: bytes) -> None:
    for segments in ([received + TAIL], octets_of(received + TAIL)):
        assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT), segments) == (sent, TAIL)
        assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT, dechunk=True), segments) == (data, TAIL)
    for place in range(1, len(received)):
        segments = [received[:place], received[place:]]
        assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT), segments) == (sent, b"")


@pytest.mark.parametrize(("received", "sent", "data"), _rows("passed"))
def test_a_chunked_body_is_not_complete_before_its_last_octet(received: bytes, sent: bytes, data: bytes) -> None:
    for end in range(len(received)):
        reader = ChunkedReader(DEFAULT_LIMITS, UPSTREAM)
        out, _ = run(reader, [received[:end]])
        assert not reader.done
        assert sent.startswith(out)
        assert not out.endswith(b"0\r\n\r\n") or b"0\r\n\r\n" in data
        with pytest.raises(Refusal) as caught:
            reader.end()
        assert caught.value.reason is Reason.UPSTREAM_CLOSED


@pytest.mark.parametrize("dechunk", [False, True])
@pytest.mark.parametrize("received", _rows("refused"))
def test_a_malformed_chunked_body_is_refused(received: bytes, dechunk: bool) -> None:
    halves = [[received[:place], received[place:]] for place in range(1, len(received))]
    for segments in ([received], octets_of(received), *halves):
        for faults, reasons in (
            (CLIENT, {Reason.BAD_FRAMING, Reason.BAD_REQUEST}),
            (UPSTREAM, {Reason.UPSTREAM_PROTOCOL}),
        ):
            with pytest.raises(Refusal) as caught:
                run(ChunkedReader(DEFAULT_LIMITS, faults, dechunk=dechunk), segments)
            assert caught.value.reason in reasons


def test_extensions_are_bounded() -> None:
    for length, fits in ((252, True), (253, False), (5_000, False)):
        received = b"5;" + b"x" * length + b"\r\nhello\r\n0\r\n\r\n"
        for segments in ([received], octets_of(received)):
            reader = ChunkedReader(DEFAULT_LIMITS, CLIENT)
            if fits:
                assert run(reader, segments)[0] == b"5\r\nhello\r\n0\r\n\r\n"
                continue
            with pytest.raises(Refusal) as caught:
                run(reader, segments)
            assert caught.value.reason is Reason.BAD_FRAMING


def test_extensions_may_not_outweigh_the_data() -> None:
    """A line that has some costs the work of many octets, so it counts for as many."""
    limits = Limits(extension_bytes=200)
    heavy = [b"1;%b\r\nz\r\n" % (b"x" * 20), b"5f;%b\r\n%b\r\n" % (b"x" * 20, b"z" * 95)]
    assert run(ChunkedReader(limits, CLIENT), [heavy[1] * 1000])[0] == b"5f\r\n%b\r\n" % (b"z" * 95) * 1000
    assert run(ChunkedReader(limits, CLIENT), [heavy[0] * 2])[0] == b"1\r\nz\r\n" * 2
    with pytest.raises(Refusal) as caught:
        run(ChunkedReader(limits, CLIENT), [heavy[0] * 3])
    assert caught.value.reason is Reason.BAD_FRAMING
    with pytest.raises(Refusal):
        run(ChunkedReader(DEFAULT_LIMITS, CLIENT), [b"2;a\r\nzz\r\n" * 1000])


@pytest.mark.parametrize("size", ["1", "01", "0" * 15 + "1", "00a", "0A", "0" * 14 + "20", "1f"])
@pytest.mark.parametrize("dechunk", [False, True])
def test_a_run_of_small_chunks_in_any_spelling_is_read_at_once(size: str, dechunk: bool) -> None:
    """One by one they cost ten times the time of their canonical form, and a piece or two each to send."""
    chunk = b"z" * int(size, 16)
    fed = ChunkedReader(DEFAULT_LIMITS, UPSTREAM, dechunk=dechunk).feed(
        memoryview(b"%b\r\n%b\r\n" % (size.encode(), chunk) * 5000)
    )
    canonical = b"%b\r\n%b\r\n" % (size.lstrip("0").encode(), chunk)
    assert b"".join(fed.pieces) == (chunk if dechunk else canonical) * 5000
    assert len(fed.pieces) == 1


@pytest.mark.parametrize("size", range(1, 40))
def test_small_chunks_in_a_run(size: int) -> None:
    for digits in (b"%x" % size, b"%X" % size):
        chunk = b"%b\r\n%b\r\n" % (digits, b"\n" * size)
        body = chunk * 3 + b"0\r\n\r\n"
        for place in range(len(chunk)):
            segments = [body[:place], body[place:]]
            assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT), segments) == (body, b"")
            assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT, dechunk=True), segments) == (b"\n" * size * 3, b"")
    for wrong in (b"%x\r\n%b\r\n" % (size, b"z" * (size + 1)), b"%x\r\n%b\n\n" % (size, b"z" * size)):
        with pytest.raises(Refusal):
            run(ChunkedReader(DEFAULT_LIMITS, CLIENT), [b"1\r\nz\r\n" + wrong])


def test_an_endless_extension_is_refused_before_its_end() -> None:
    with pytest.raises(Refusal):
        run(ChunkedReader(DEFAULT_LIMITS, CLIENT), octets_of(b"5;" + b"x" * 300))


def test_the_trailer_section_is_bounded() -> None:
    limits = Limits(trailer_bytes=200, fields=3)
    endless = b"0\r\nX: " + b"y" * 300
    for received in (endless, endless + b"\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 4 + b"\r\n"):
        for segments in ([received], octets_of(received)):
            with pytest.raises(Refusal) as caught:
                run(ChunkedReader(limits, CLIENT), segments)
            assert caught.value.reason is Reason.HEAD_TOO_LARGE


def test_a_canonical_body_is_passed_on_as_one_view() -> None:
    received = b"".join(b"%x\r\n%b\r\n" % (size, b"z" * size) for size in range(1, 200))
    fed = ChunkedReader(DEFAULT_LIMITS, CLIENT).feed(memoryview(received))
    (piece,) = fed.pieces
    assert isinstance(piece, memoryview)
    assert piece.obj is received
    assert piece == received


def test_a_line_end_behind_data_is_not_held_back() -> None:
    reader = ChunkedReader(DEFAULT_LIMITS, UPSTREAM)
    event = b"d\r\ndata: first\n\n\r\n"
    assert run(reader, [event]) == (event, b"")
    assert run(reader, [event[:1]]) == (b"", b"")
    assert run(reader, [event[1:]]) == (event, b"")


def test_a_huge_chunk_is_sent_as_it_arrives() -> None:
    reader = ChunkedReader(DEFAULT_LIMITS, UPSTREAM)
    assert run(reader, [b"7fffffffffffffff\r\nx"]) == (b"7fffffffffffffff\r\nx", b"")
    assert run(reader, [b"y" * 1000]) == (b"y" * 1000, b"")


def test_trailers_are_kept_for_the_record() -> None:
    reader = ChunkedReader(DEFAULT_LIMITS, UPSTREAM)
    run(reader, [b"0\r\nX-Sum: 1\r\nHost: x\r\n\r\n"])
    assert reader.trailers == ((b"X-Sum", b"1"),)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 10_000), max_size=8), st.data()
)
def test_any_segmentation_sends_the_same(chunks: list[bytes], places: list[int], data: st.DataObject) -> None:
    received = b""
    for chunk in chunks:
        zeros = b"0" * data.draw(st.integers(0, 3))
        extension = data.draw(st.sampled_from([b"", b"", b";a", b';a="b;\\""']))
        size = data.draw(st.sampled_from([b"%x", b"%X"])) % len(chunk)
        received += zeros + size + extension + b"\r\n" + chunk + b"\r\n"
    received += b"0\r\n" + data.draw(st.sampled_from([b"", b"X: y\r\n", b"Host: z\r\nX: y\r\n"])) + b"\r\n"
    segments = cut(received + TAIL, places)
    whole, rest = run(ChunkedReader(DEFAULT_LIMITS, CLIENT), segments)
    assert rest == TAIL
    assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT), octets_of(received)) == (whole, b"")
    bare = run(ChunkedReader(DEFAULT_LIMITS, CLIENT, dechunk=True), segments)
    assert bare == (b"".join(chunks), TAIL)
    assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT, dechunk=True), [whole]) == (b"".join(chunks), b"")
    assert run(ChunkedReader(DEFAULT_LIMITS, CLIENT), [whole])[0] == whole


@given(st.binary(max_size=60), st.lists(st.integers(0, 200), max_size=4))
def test_any_octets_are_read_alike_in_any_segmentation(noise: bytes, places: list[int]) -> None:
    received = b"3\r\nabc\r\n" + noise
    outcomes = []
    for segments in ([received], octets_of(received), cut(received, places)):
        reader = ChunkedReader(DEFAULT_LIMITS, CLIENT, dechunk=True)
        try:
            outcomes.append((run(reader, segments), reader.done))
        except Refusal as refusal:
            outcomes.append(((str(refusal.reason).encode(), b""), False))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize(("n", "segments"), [(5, [b"he", b"llo"]), (5, [b"hello"]), (0, []), (1, [b"h"])])
def test_a_length_is_counted_out(n: int, segments: list[bytes]) -> None:
    reader = LengthReader(n, CLIENT)
    assert run(reader, [*segments, TAIL]) == (b"".join(segments), TAIL)
    assert reader.done
    reader.end()


def test_a_length_that_is_not_reached_is_a_cut() -> None:
    for faults, reason in ((CLIENT, Reason.CLIENT_CLOSED), (UPSTREAM, Reason.UPSTREAM_CLOSED)):
        reader = LengthReader(1 << 40, faults)
        assert reader.take(1 << 30) == 1 << 30
        with pytest.raises(Refusal) as caught:
            reader.end()
        assert caught.value.reason is reason


def test_a_body_until_close_ends_with_the_connection() -> None:
    reader = CloseReader()
    assert run(reader, [b"a", b"", b"b" * 100]) == (b"a" + b"b" * 100, b"")
    assert not reader.done
    reader.end()
    assert reader.done


def test_each_framing_has_its_reader() -> None:
    assert reader_for(NO_BODY, DEFAULT_LIMITS, CLIENT) is None
    assert isinstance(reader_for(Length(3), DEFAULT_LIMITS, CLIENT), LengthReader)
    assert isinstance(reader_for(CHUNKED, DEFAULT_LIMITS, CLIENT), ChunkedReader)
    assert isinstance(reader_for(UNTIL_CLOSE, DEFAULT_LIMITS, UPSTREAM), CloseReader)
