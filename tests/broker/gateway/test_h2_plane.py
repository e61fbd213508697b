"""HTTP/2 through the real broker: what a stream may say, what is sent on, and how each of them ends."""

import asyncio
import tomllib
from typing import Any

import pytest
from hyperframe.frame import WindowUpdateFrame

from broker.policy.load import parse_policy
from tests.broker.gateway.h2_peers import (
    HOST,
    ODD,
    Answered,
    Client,
    H2Origin,
    connect,
    data,
    frame_of,
    request,
    window,
)
from tests.broker.gateway.world import World, in_world, look_up
from tests.tree import ROOT

pytestmark = pytest.mark.live
CASES = tomllib.loads((ROOT / "tests/cases/http2_requests.toml").read_text("utf-8"))["case"]
OTHER = "alias.example"
RULES = """
[[rule]]
name = "streams"
action = "allow"
hosts = ["public4.example"]
ports = [443]
methods = ["GET", "POST"]
paths = ["/echo", "/echo/**", "/only", "/reset/*", "/late-reset/*", "/goaway/*", "/interim/*", "/big/*", "/early",
  "/never", "/stall", "/odd/*", "/short", "/content/*", "/heads/*"]

[[rule]]
name = "other"
action = "allow"
hosts = ["alias.example"]
ports = [443]
"""


def begin(world: World, *, host: str = HOST, **options: Any) -> Client:
    return connect(world.client_context("h2"), look_up(host), host=host, **options)


def ask(world: World, fields: Any, body: bytes | None = None) -> Answered:
    return begin(world).ask(fields, body)


def altered(case: dict[str, Any]) -> list[tuple[str, str]]:
    good = [(n, case.get("set", {}).get(n, v)) for n, v in request() if n not in case.get("drop", ())]
    return [*map(tuple, case.get("before", ())), *good, *map(tuple, case.get("after", ()))]


@in_world
async def test_a_field_list_is_judged_as_it_was_sent(world: World) -> None:
    """One connection for all: a malformed stream is its own stream's error and no other's."""
    origin = H2Origin()
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        for number, case in enumerate(CASES):
            answered = await world.inside(client.ask, altered(case), stream_id=number * 2 + 1)
            assert answered.body, (case["name"], answered, client.goaway)
            problem = answered.problem
            outcome = {"status": int(answered.status), "reason": problem["reason"], "error": answered.reset or 0}
            assert outcome == {name: case[name] for name in outcome}, case["name"]
            assert problem["status"] == case["status"]
            (record,) = [one for one in world.records() if one["id"] == problem["record"]]
            assert (record["verdict"], record["reason"]) == ("deny", case["reason"]), case["name"]
        assert origin.requests == []
        good = await world.inside(client.ask, request(), stream_id=len(CASES) * 2 + 1)
        assert good.status == "200"
        assert client.goaway is None


@in_world
async def test_what_is_sent_on_is_what_was_judged(world: World) -> None:
    """Read back by hyper-h2, which checks all that RFC 9113 asks of a request."""
    origin = H2Origin()
    target = "/echo/%7Ea/./b//c;d=e?x=%20y&x=&/../?"
    sent = (
        ("user-agent", "test/1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
        ("via", "1.1 me"),
        ("proxy-authorization", "Basic c2VjcmV0"),
        ("te", "trailers"),
        ("cookie", "a=b"),
        ("cookie", "c=d"),
        ("x-repeated", "1"),
        ("x-repeated", "2"),
        ("x-latin", "caf\u00e9"),
        ("x-empty", ""),
    )
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world, host=OTHER)
        fields = request(target, *sent, method="POST", host=f"{OTHER.upper()}:443")
        answered = await world.inside(client.ask, fields, b"some body")
        assert (answered.status, answered.body) == ("200", b"some body")
        (seen,) = origin.requests
        assert origin.violations == []
        kept = {"user-agent", "te", "x-repeated", "x-latin", "x-empty"}
        expected = [(":method", "POST"), (":scheme", "https"), (":authority", OTHER), (":path", target)]
        expected += [one for one in sent if one[0] in kept]
        assert [one for one in seen.headers if one[0] != "cookie"] == expected
        assert "; ".join(value for name, value in seen.headers if name == "cookie") == "a=b; c=d"
        assert bytes(seen.body) == b"some body"
        (record,) = [one for one in world.records() if one["verdict"] == "allow"]
        assert (record["plane"], record["method"], record["authority"]) == ("h2", "POST", f"{OTHER}:443")


@in_world
async def test_bodies_and_trailers_are_exact_both_ways(world: World) -> None:
    origin = H2Origin()
    body = bytes(range(256)) * 4096  # more than all windows

    def upload(client: Client) -> Answered:
        client.raw(client.headers(1, request("/echo", method="POST"), end=False))
        client.sock.settimeout(20)
        room, sent = 65535, 0
        while sent < len(body):
            while room <= 0:
                client.read()
                room = 65535 - sent + _granted(client)
            piece = body[sent : sent + min(16384, room)]
            client.raw(data(1, piece))
            sent += len(piece)
            room = 65535 - sent + _granted(client)
        client.raw(client.headers(1, [("x-sum", "1"), ("content-length", "9"), ("grpc-status", "0")]))
        return client.wait(1)

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        answered = await world.inside(upload, client)
        assert answered.body == body
        assert answered.headers[1:] == [{"x-sum": "1", "grpc-status": "0"}]
        assert origin.requests[0].trailers == [("x-sum", "1"), ("grpc-status", "0")]
        (close,) = [one for one in world.records("close") if one.get("status")]
        seen = origin.requests[0]
        up = sum(len(name) + len(value) for name, value in (*seen.headers, *seen.trailers))
        down = sum(len(name) + len(value) for fields in answered.headers for name, value in fields.items())
        assert (close["bytes_up"], close["bytes_down"]) == (len(body) + up, len(body) + down)


def _granted(client: Client) -> int:
    grants = [frame for frame in client.frames if isinstance(frame, WindowUpdateFrame)]
    stream = sum(f.window_increment for f in grants if f.stream_id == 1) + 256 * 1024 - 65535
    return min(stream, sum(f.window_increment for f in grants if f.stream_id == 0))


@in_world
async def test_the_end_comes_where_it_came(world: World) -> None:
    origin = H2Origin()
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        only = await world.inside(ask, world, request("/only"))
        assert only.headers == [
            {":status": "200", "content-type": "application/grpc", "grpc-status": "5", "grpc-message": "no"}
        ]
        client = await world.inside(begin, world)
        await world.inside(client.ask, request("/only"))
        assert not [one for one in client.frames if one.type == 0]  # no DATA: gRPC reads "trailers-only" from that
        head = await world.inside(ask, world, request("/echo", method="HEAD"))
        assert (head.status, head.body, head.ended) == ("200", b"", True)
        early = await world.inside(ask, world, request("/early", method="GET"))
        assert (early.body, early.ended) == (b"early", True)
        interim = await world.inside(ask, world, request("/interim/3"))
        assert [one[":status"] for one in interim.headers] == ["103", "103", "103", "200"]
        flood = await world.inside(ask, world, request("/interim/11"))
        assert (flood.status, flood.problem["reason"]) == ("502", "upstream_protocol")
        refused = await world.inside(ask, world, request("/reset/7"))  # REFUSED_STREAM
        assert (refused.reset, refused.headers) == (7, [])
        failed = await world.inside(ask, world, request("/reset/8"))
        assert (failed.status, failed.problem["reason"]) == ("502", "upstream_closed")
        broken = await world.inside(ask, world, request("/late-reset/11"))
        assert (broken.status, broken.ended, broken.reset) == ("200", False, 11)


@in_world
async def test_an_answer_to_half_a_request_ends_it(world: World) -> None:
    origin = H2Origin()

    def half(client: Client) -> Answered:
        client.raw(client.headers(1, request("/early", method="POST"), end=False), data(1, b"x" * 100))
        answered = client.wait(1)
        while answered.reset is None and client.read():
            pass
        return answered

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        answered = await world.inside(half, client)
        assert (answered.body, answered.reset) == (b"early", 0)
        # What was not passed on is given back to the connection's window, or later streams would starve.
        for number in range(3, 43, 2):
            client.raw(client.headers(number, request("/early", method="POST"), end=False))
            client.raw(*(data(number, bytes(16384)) for _ in range(3)))
            assert (await world.inside(client.wait, number)).body == b"early"
        echoed = await world.inside(client.ask, request("/echo", method="POST"), b"still", stream_id=101)
        assert echoed.body == b"still"


@in_world
async def test_a_malformed_response_is_a_failure(world: World) -> None:
    origin = H2Origin()
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        for which in ODD:
            answered = await world.inside(ask, world, request(f"/odd/{which}"))
            assert (answered.status, answered.problem["reason"]) == ("502", "upstream_protocol"), which
            assert "set-cookie" not in str(answered.headers)


@in_world
async def test_a_message_of_another_length_than_stated_never_looks_whole(world: World) -> None:
    """RFC 9113 §8.1.1, where fields end the stream: in the head, or as trailers behind some data."""
    origin = H2Origin()

    def short(stated: str) -> Answered:
        client = begin(world)
        client.raw(client.headers(1, request("/echo", ("content-length", stated), method="POST"), end=False))
        client.raw(data(1, b"hello"), client.headers(1, [("x-trailer", "1")]))
        return client.wait(1)

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        assert (await world.inside(short, "50")).reset == 1
        assert not any(seen.ended for seen in origin.requests)
        assert (await world.inside(short, "5")).body == b"hello"
        answered = await world.inside(ask, world, request("/short"))
        assert (answered.ended, answered.reset is None) == (False, False)
        reasons = [close["reason"] for close in world.records("close")]
        assert reasons == ["bad_framing", "finished", "upstream_protocol"]


@pytest.mark.parametrize(("method", "status"), [("GET", "204"), ("GET", "304"), ("HEAD", "200"), ("HEAD", "404")])
@in_world
async def test_no_content_comes_where_there_can_be_none(world: World, *, method: str, status: str) -> None:
    origin = H2Origin()
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        answered = await world.inside(ask, world, request(f"/content/{status}", method=method))
        assert (answered.body, answered.ended, answered.reset) == (b"", False, 2)
        (close,) = world.records("close")
        assert (close["reason"], close["verdict"]) == ("upstream_protocol", "failure")


@in_world
async def test_a_stream_that_we_reset_is_not_put_on_record_as_the_peers_doing(world: World) -> None:
    origin = H2Origin()

    def overflow(client: Client) -> Answered:
        client.raw(client.headers(1, request("/stall")), window(1, 2**31 - 1), window(1, 2**31 - 1))
        return client.wait(1)

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        assert (await world.inside(overflow, client)).reset == 3
        (close,) = world.records("close")
        assert (close["reason"], close["detail"]) == ("bad_framing", "HTTP/2: FLOW_CONTROL_ERROR")


@in_world
async def test_streams_survive_an_upstream_that_leaves(world: World) -> None:
    origin = H2Origin()
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        served = await world.inside(ask, world, request("/goaway/1", method="POST"), b"in flight")
        assert served.body == b"in flight"  # begun before the GOAWAY, ended after it
        assert origin.connections == 1
        origin.connections = 0
        unseen = await world.inside(ask, world, request("/goaway/0", method="GET"))
        assert unseen.status == "200"  # not looked at, so it went to another connection
        assert origin.connections == 2


@in_world
async def test_more_streams_than_the_upstream_takes_wait(world: World) -> None:
    origin = H2Origin(MAX_CONCURRENT_STREAMS=2)

    def many(client: Client) -> list[Answered]:
        numbers = range(1, 41, 2)
        client.raw(*(client.headers(number, request("/echo", method="POST"), end=False) for number in numbers))
        client.raw(*(data(number, str(number).encode(), end=True) for number in numbers))
        return [client.wait(number) for number in numbers]

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        answers = await world.inside(many, client)
        assert [one.body for one in answers] == [str(number).encode() for number in range(1, 41, 2)]
        assert (origin.connections, origin.violations) == (1, [])


@in_world
async def test_a_stream_is_cut_for_itself(world: World) -> None:
    """A client's reset reaches the upstream with its code, and the other streams go on."""
    origin = H2Origin()

    def scenario(client: Client) -> Answered:
        client.raw(client.headers(1, request("/echo", method="POST"), end=False), data(1, b"first"))
        client.raw(client.headers(3, request("/echo", method="POST"), end=False), data(3, b"second"))
        while not (client.streams.get(3) and client.streams[3].body) or not client.streams[1].body:
            client.read()
        client.raw(frame_of(3, 1, b"\0\0\0\x08"), data(3, b" goes on", end=True))
        return client.wait(3)

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        answered = await world.inside(scenario, client)
        assert answered.body == b"second goes on"
        async with asyncio.timeout(30):
            while origin.requests[0].reset is None:
                await asyncio.sleep(0.01)
        assert origin.requests[0].reset == 8
        (close,) = [one for one in world.records("close") if one["reason"] == "client_closed"]
        assert "CANCEL" in close["detail"]


@in_world
async def test_an_upstream_without_http2_is_a_failure_that_says_so(world: World) -> None:
    async def never(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with world.broker(RULES, inspect=True), world.origin(never, port=443, tls=world.server_context("http/1.1")):
        answered = await world.inside(ask, world, request())
        assert (answered.status, answered.problem["reason"]) == ("502", "upstream_protocol")
        assert "HTTP/2" in answered.problem["detail"]


@in_world
async def test_a_grpc_call_reads_a_refusal_in_its_own_words(world: World) -> None:
    async with world.broker(RULES, inspect=True):
        call = request("/private/Service/Method", ("content-type", "application/grpc+proto"), method="POST")
        client = await world.inside(begin, world)
        client.raw(client.headers(1, call, end=False), data(1, b"\0\0\0\0\0"))
        answered = await world.inside(client.wait, 1)
        (fields,) = answered.headers
        assert (fields[":status"], fields["grpc-status"], answered.body) == ("403", "7", b"")
        assert "path_not_allowed" in fields["grpc-message"]


@in_world
async def test_a_refused_connection_is_refused_stream_by_stream(world: World) -> None:
    async with world.broker(RULES, inspect=True):
        client = await world.inside(begin, world, host="denied.example")
        for number in (1, 3):
            answered = await world.inside(client.ask, request(host="denied.example"), stream_id=number)
            assert (answered.status, answered.problem["reason"]) == ("403", "host_not_allowed")
        assert client.goaway is None
        assert len([one for one in world.records() if one["reason"] == "host_not_allowed"]) == 2


@in_world
async def test_windows_bound_what_waits(world: World) -> None:
    """A client that takes nothing holds its own response back at the origin, not in the broker."""
    origin = H2Origin()

    def stalled(client: Client) -> Answered:
        client.raw(client.headers(1, request("/big/50000000")))
        while not client.streams.get(1) or len(client.streams[1].body) < 1000:
            client.read()
        other = client.ask(request("/echo", method="POST"), b"beside it", stream_id=3)
        assert len(client.streams[1].body) == 1000
        client.raw(window(1, 5000), window(0, 1 << 20))
        while len(client.streams[1].body) < 6000:
            client.read()
        return other

    async with (
        world.broker(RULES, inspect=True) as broker,
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        client = await world.inside(begin, world, window=1000, silent=True)
        client.raw(frame_of(4, 0, b"", 1))
        answered = await world.inside(stalled, client)
        assert answered.body == b"beside it"
        (session,) = broker.sessions.values()
        (connection,) = session._connections
        waiting = sum(len(piece) for one in connection._exchanges.values() for piece in one.down.waiting)  # type: ignore[attr-defined,misc]
        assert 0 < waiting <= 256 * 1024


@in_world
async def test_a_client_that_leaves_gets_what_it_asked_for(world: World) -> None:
    """GOAWAY says that nothing new comes; the streams before it go on to their ends (RFC 9113 §6.8)."""
    origin = H2Origin()

    def leave(client: Client) -> Answered:
        client.raw(client.headers(1, request("/big/4000000")), frame_of(7, 0, bytes(8)))
        answered = client.wait(1)
        client.drain()
        return answered

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(begin, world)
        answered = await world.inside(leave, client)
        assert (len(answered.body), answered.ended) == (4_000_000, True)
        assert client.goaway is not None
        assert client.goaway.error_code == 0


@in_world
async def test_streams_end_when_the_policy_does_not_allow_them_any_more(world: World) -> None:
    origin = H2Origin()

    def begin_two(client: Client) -> None:
        for number in (1, 3):
            path = "/echo" if number == 1 else "/stall"
            client.raw(client.headers(number, request(path, method="POST"), end=False), data(number, b"x"))
        while not client.streams.get(1) or not client.streams[1].body:
            client.read()

    async with (
        world.broker(RULES, inspect=True) as broker,
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        client = await world.inside(begin, world)
        await world.inside(begin_two, client)
        less = RULES.replace('"/stall", ', "")
        broker.change_policy(parse_policy(f"version = 1\n[egress]\nenabled = true\n{less}", source="test"))
        cut = await world.inside(client.wait, 3)
        assert cut.reset is not None
        client.raw(data(1, b"y", end=True))
        assert (await world.inside(client.wait, 1)).body == b"xy"
        (close,) = [one for one in world.records("close") if one["reason"] == "policy_changed"]
        assert close["path"] == "/stall"
