"""ClientHello: real hellos in every segmentation and record split, a table of malformed ones, mutation."""

import ssl
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.policy.reasons import Reason, Refusal
from broker.wire.client_hello import LIMIT, TLS12, TLS13, ClientHello, parse_client_hello
from broker.wire.records import RAW_FACTOR, bytes_missing
from broker.wire.sniff import Protocol, sniff

CASES = tomllib.loads((Path(__file__).parents[2] / "cases/client_hello.toml").read_text())["case"]
VERSIONS = ["002b", "0403040303"]


def vector(size: int, body: bytes) -> bytes:
    return len(body).to_bytes(size) + body


def records(message: bytes, cuts: list[int], version: bytes = b"\x03\x01") -> bytes:
    """The message in one record per piece between the cuts."""
    pieces = [message[a:b] for a, b in pairwise([0, *cuts, len(message)])]
    return b"".join(b"\x16" + version + vector(2, piece) for piece in pieces)


def sni_body(name: str) -> str:
    return vector(2, b"\0" + vector(2, name.encode())).hex()


def build(case: dict[str, Any]) -> bytes:
    """The handshake message of a case of the table."""
    pairs = list(case.get("extensions", [VERSIONS]))
    if "sni" in case:
        pairs.insert(0, ["0000", sni_body(case["sni"])])
    block = vector(2, b"".join(bytes.fromhex(kind) + vector(2, bytes.fromhex(body)) for kind, body in pairs))
    fixed = case.get("legacy", "0303") + "5a" * 32 + case.get("session", "00")
    fixed += case.get("ciphers", "00021301") + case.get("compression", "0100")
    return b"\x01" + vector(3, bytes.fromhex(fixed) + (bytes.fromhex(case["block"]) if "block" in case else block))


def raw_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["raw"]) if "raw" in case else records(build(case), [])


def real_hello(
    name: str | None = "api.example.com",
    alpn: tuple[str, ...] = (),
    maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> bytes:
    """The hello that OpenSSL sends."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.maximum_version = maximum
    if alpn:
        context.set_alpn_protocols(list(alpn))
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def post_quantum_hello(name: str = "api.example.com", padding: int = 0) -> bytes:
    """The shape of a browser's hello: GREASE everywhere, an X25519MLKEM768 key share, the name behind byte 1,200."""
    share = bytes.fromhex("2a2a000100") + bytes.fromhex("11ec") + vector(2, b"\x77" * 1216)
    share += bytes.fromhex("001d") + vector(2, b"\x55" * 32)
    extensions = [
        ["2a2a", ""],
        ["000a", "00082a2a11ec001d0017"],
        ["000d", "0006040308040401"],
        ["0033", vector(2, share).hex()],
        ["fe0d", "00" + "11" * 185],
        ["0010", "000c02683208687474702f312e31"],
        ["002b", "065a5a03040303"],
        ["0000", sni_body(name)],
        ["0015", "00" * padding],
        ["4a4a", "00"],
    ]
    return build({"ciphers": "00085a5a130113021303", "session": "20" + "33" * 32, "extensions": extensions})


REAL = {
    "tls13": real_hello(alpn=("h2", "http/1.1")),
    "tls12": real_hello(maximum=ssl.TLSVersion.TLSv1_2),
    "nameless": real_hello(name=None),
    "post-quantum": records(post_quantum_hello(), []),
}


def outcome(data: bytes, limit: int = LIMIT) -> ClientHello | Reason | None:
    try:
        return parse_client_hello(data, limit=limit)
    except Refusal as refusal:
        return refusal.reason


def parsed(data: bytes) -> ClientHello:
    hello = parse_client_hello(data)
    assert hello is not None
    return hello


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_table(case: dict[str, Any]) -> None:
    got = outcome(raw_of(case))
    if "reason" in case:
        assert got is Reason(case["reason"])
    else:
        assert isinstance(got, ClientHello)
        assert (got.server_name or "") == case["name"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_a_refusal_never_turns_into_a_hello(case: dict[str, Any]) -> None:
    """Byte by byte: undecided, then one outcome, which stays (only its reason may become more exact)."""
    data = raw_of(case)
    outcomes = [outcome(data[:size]) for size in range(len(data) + 1)]
    decided = [got for got in outcomes if got is not None]
    assert outcomes == [None] * (len(outcomes) - len(decided)) + decided
    assert len({type(got) for got in decided}) == 1


def test_openssl_tls13_hello() -> None:
    hello = parsed(REAL["tls13"])
    assert hello == ClientHello(
        server_name=hello.server_name,
        alpn=(b"h2", b"http/1.1"),
        versions=(TLS13, TLS12),
        ech=False,
        early_data=False,
        x25519=True,
        length=len(REAL["tls13"]),
    )
    assert hello.server_name == "api.example.com"


def test_openssl_tls12_and_nameless_hellos() -> None:
    assert parsed(REAL["tls12"]).versions == (TLS12,)
    assert parsed(REAL["nameless"]).server_name is None


def test_post_quantum_hello() -> None:
    hello = parsed(REAL["post-quantum"])
    assert hello.server_name == "api.example.com"
    assert hello.versions == (0x5A5A, TLS13, TLS12)
    assert hello.ech
    assert REAL["post-quantum"].index(b"api.example.com") > 1200


@pytest.mark.parametrize(
    ("shares", "has"),
    [
        ("0024001d0020" + "00" * 32, True),
        ("0028" + "0a0a0000" + "001d0020" + "00" * 32, True),  # behind GREASE
        ("0045" + "00170041" + "00" * 65, False),
        ("0000", False),
        ("", False),
        ("00", False),
        ("0024001d00", False),  # cut off; whoever answers this hello refuses it
        ("ffff0017ffff", False),
    ],
)
def test_a_share_for_x25519_is_seen_and_never_judged(shares: str, has: bool) -> None:
    hello = parsed(records(build({"sni": "api.example.com", "extensions": [VERSIONS, ["0033", shares]]}), []))
    assert hello.x25519 is has


def test_early_data_is_seen_and_what_follows_the_hello_is_left_alone() -> None:
    case = {"sni": "api.example.com", "extensions": [["002a", ""], VERSIONS, ["0029", "00"]]}
    data = records(build(case), [])
    hello = parsed(data + b"\x14\x03\x03\x00\x01\x01\x17\x03\x03\x00\x10")
    assert hello.early_data
    assert hello.length == len(data)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_byte_by_byte(kind: str, buffer: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    data = REAL[kind]
    assert all(parse_client_hello(buffer(data[:size])) is None for size in range(len(data)))
    assert parse_client_hello(buffer(data)) == parsed(data)


@pytest.mark.parametrize("kind", REAL)
def test_records_split_at_every_position(kind: str) -> None:
    whole, message = parsed(REAL[kind]), REAL[kind][5:]
    for cut in range(1, len(message)):
        split = parsed(records(message, [cut]))
        assert split.server_name == whole.server_name
        assert (split.alpn, split.versions, split.length) == (whole.alpn, whole.versions, whole.length + 5)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7])
def test_small_records_in_any_segmentation(kind: str, step: int) -> None:
    message = REAL[kind][5:]
    data = records(message, list(range(step, len(message), step)))
    whole = parsed(data)
    assert (whole.server_name, whole.length) == (parsed(REAL[kind]).server_name, len(data))
    stops = [*range(0, len(data), 97), *range(len(data) - 12, len(data))]
    assert all(parse_client_hello(data[:size]) is None for size in stops)


def test_largest_hello_is_read_and_one_byte_more_is_not() -> None:
    spare = LIMIT - len(post_quantum_hello())
    message = post_quantum_hello(padding=spare)
    assert len(message) == LIMIT
    assert parsed(records(message, [])).server_name == "api.example.com"
    assert parsed(records(message, list(range(8, LIMIT, 8)))).server_name == "api.example.com"
    longer = post_quantum_hello(padding=spare + 1)
    assert outcome(records(longer, [9000])) is Reason.CLIENT_HELLO_TOO_LARGE
    assert outcome(records(longer, [9000])[:9]) is Reason.CLIENT_HELLO_TOO_LARGE


def test_a_large_hello_in_dust_is_refused_early() -> None:
    message = post_quantum_hello(padding=LIMIT - len(post_quantum_hello()))
    dust = records(message, list(range(1, LIMIT)))
    assert outcome(dust) is Reason.CLIENT_HELLO_TOO_LARGE
    assert outcome(dust[: RAW_FACTOR * LIMIT + 6]) is Reason.CLIENT_HELLO_TOO_LARGE
    assert outcome(dust[: RAW_FACTOR * LIMIT - 6]) is None


def test_a_second_message_in_the_last_record_is_refused() -> None:
    message = REAL["tls13"][5:]
    assert outcome(records(message + b"\x05", [])) is Reason.BAD_CLIENT_HELLO
    assert outcome(records(message + message, [100])) is Reason.BAD_CLIENT_HELLO


def test_waiting_for_the_missing_bytes_makes_dust_cheap() -> None:
    message = REAL["post-quantum"][5:]
    dust = records(message, list(range(1, len(message))))
    have, asked = 0, 0
    while missing := bytes_missing(dust[:have], limit=LIMIT):
        have, asked = have + missing, asked + 1
        assert have <= len(dust)
    assert have == len(dust)
    assert asked < 60


@given(st.sampled_from(sorted(REAL)), st.data())
def test_the_missing_bytes_are_never_too_many(kind: str, data: st.DataObject) -> None:
    message = REAL[kind][5:]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(message) - 1), max_size=12)))
    raw = records(message, cuts)
    have = data.draw(st.integers(0, len(raw)))
    missing = bytes_missing(raw[:have], limit=LIMIT)
    assert missing <= len(raw) - have
    assert (missing == 0) == (have == len(raw))


def edit(raw: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    data = bytearray(raw)
    for how, where, byte in edits:
        at = where % (len(data) or 1)
        match how:
            case "set":
                data[at : at + 1] = bytes([byte])
            case "add":
                data[at:at] = bytes([byte])
            case _:
                del data[at : at + 1 + byte % 4]
    return bytes(data)


def refit(raw: bytes) -> bytes:
    """Make the record's and the message's length true again, so that mutants reach the inner levels."""
    body = raw[9:]
    return b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, body))


EDITS = st.lists(
    st.tuples(st.sampled_from(["set", "add", "del"]), st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=6
)


@settings(max_examples=400)
@given(st.sampled_from(sorted(REAL)), EDITS, st.booleans())
@example("tls13", [("set", 0, 0x80)], False)
def test_mutants_are_refused_or_read_literally(kind: str, edits: list[tuple[str, int, int]], fit: bool) -> None:
    data = edit(REAL[kind], edits)
    data = refit(data) if fit else data
    got = outcome(data)
    if isinstance(got, ClientHello):
        assert (got.server_name or "").encode() in data.lower()
        assert {TLS12, TLS13} & {*got.versions}
        assert got.length <= len(data)
        assert all(name and name in data for name in got.alpn)
        assert all(not isinstance(outcome(data[:size]), ClientHello) for size in (got.length - 1, got.length // 2, 5))


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused_or_wait(data: bytes, as_record: bool) -> None:
    assert not isinstance(outcome(records(data, []) if as_record else data), ClientHello)


@settings(max_examples=300)
@given(st.sampled_from([b"", b"\x14", b"\x16", b"\x16\x03", b"\x80\x2e\x01", b"GET "]), st.binary(max_size=20))
@example(b"\x14", b"\0\0\0\0")
@example(b"\x15\x03", b"\x03\x00\x02")
@example(b"\x19\x03", b"\x03\x00\x02")
@example(b"\x80\x2e\x01\x01", b"\x02\0")
def test_sniffing_and_parsing_agree_on_what_is_tls(start: bytes, rest: bytes) -> None:
    data = start + rest
    protocol = sniff(data)
    if len(data) >= 5 and protocol is not None:
        assert (outcome(data) is Reason.NOT_TLS) == (protocol is not Protocol.TLS)


def names_that_openssl_sees(data: bytes) -> list[str | None]:
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: seen.append(name)
    arrived = ssl.MemoryBIO()
    arrived.write(data)
    with pytest.raises(ssl.SSLError):  # it has no certificate, so it ends here at the latest
        context.wrap_bio(arrived, ssl.MemoryBIO(), server_side=True).do_handshake()
    return seen


@pytest.mark.parametrize("kind", REAL)
def test_openssl_reads_the_same_name(kind: str) -> None:
    message = REAL[kind][5:]
    dust = records(message, list(range(50, len(message), 50)))
    assert names_that_openssl_sees(dust) == [parsed(dust).server_name]


@settings(max_examples=150)
@given(EDITS)
def test_openssl_never_reads_another_name(edits: list[tuple[str, int, int]]) -> None:
    data = refit(edit(REAL["tls13"], edits))
    got = outcome(data)
    if isinstance(got, ClientHello):
        assert all((name or "").lower() == (got.server_name or "") for name in names_that_openssl_sees(data))
