"""Plain HTTP through the real broker, with an origin that keeps every octet: what is sent on and what is not."""

import asyncio
import errno
import io
import os
import re
import resource
import socket
import subprocess
import time
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address

import pytest

from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.limits import DEFAULTS
from broker.policy.names import parse_host_name
from broker.policy.reasons import Reason
from tests.broker.gateway.world import PUBLIC, Behaviour, World, exchange, in_world, look_up, read_all
from tests.tree import ROOT

pytestmark = pytest.mark.live
CASES = ROOT / "tests" / "cases"
HOST = "api.example.com"
OTHER = "a.example"
RULES = f"""
[[rule]]
name = "all"
action = "allow"
hosts = ["{HOST}"]
ports = [80]
websocket = true

[[rule]]
name = "one-path"
action = "allow"
hosts = ["{OTHER}"]
ports = [80]
methods = ["GET", "POST"]
paths = ["/", "/v1/**"]
"""
FAST = """
[limits]
head_seconds = 1
silent_seconds = 1
idle_seconds = 1
half_closed_seconds = 0.5
stalled_write_seconds = 1
upstream_head_seconds = 1
session_connections = 4
"""
FIXED: Mapping[Authority, tuple[Address, ...]] = {
    Authority(parse_host_name(name), 80): (ip_address(PUBLIC),) for name in (HOST, OTHER)
}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\n\r\n"


def answering(response: bytes) -> Behaviour:
    """An origin that answers each request head with the same octets, and reads on."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
            await writer.drain()

    return behave


def status_of(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found[1]) if found else 0


def refused_heads() -> list[tuple[str, bytes, Reason]]:
    table = tomllib.loads((CASES / "http1_requests_refused.toml").read_text("utf-8"))
    start = f"HTTP/1.1\r\nHost: {HOST}\r\n"
    rows = [(name, head, reason) for name, head, reason in table["heads"]]
    rows += [(name, f"GET / {start}{lines}\r\n", reason) for name, lines, reason in table["fields"]]
    rows += [(name, f"POST / {start}{lines}\r\n", reason) for name, lines, reason in table["posts"]]
    return [(name, head.encode("latin-1"), Reason(reason)) for name, head, reason in rows]


@in_world
async def test_no_refused_head_reaches_the_origin(world: World) -> None:
    """Nor anything behind it: after a refusal the rest of the connection is never taken for a request."""
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)) as origin:
        where = (await world.inside(look_up, HOST), 80)
        wrong = []
        for name, head, reason in refused_heads():
            answer = await world.inside(exchange, where, head + SMUGGLED)
            one_answer = answer.count(b"HTTP/1.1 ") == 1 or (not answer.strip(b"RESET") and status_of(answer) == 0)
            if status_of(answer) not in {reason.status, 400, 405, 0} or not one_answer or origin.text:
                wrong.append((name, answer[:80], origin.text[:80]))
                origin.forget()
        assert wrong == []
        denied = world.records()
        assert {one["verdict"] for one in denied} == {"deny"}
        assert len(denied) == len(refused_heads())


@in_world
async def test_a_turn_after_each_read_brings_all_of_it(world: World) -> None:
    """As where the octets cost so much that each turn is late after one read, in both directions."""
    sent, came = b"u" * 2_000_000, b"d" * 2_000_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(came) + came
    chunked = b"".join(
        b"%x\r\n%s\r\n" % (len(sent[at : at + 999]), sent[at : at + 999]) for at in range(0, len(sent), 999)
    )
    head = request("/", method="POST", more="Transfer-Encoding: chunked\r\nConnection: close\r\n")
    asked = 0

    def is_late() -> bool:
        nonlocal asked
        asked += 1
        return True

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = b""
        while not end.endswith(b"0\r\n\r\n"):
            end = (end + await reader.read(65536))[-8:]
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with world.broker(RULES, fixed=FIXED) as broker, world.origin(behave) as origin:
        broker.reactor.is_late = is_late  # type: ignore[method-assign]
        where = (await world.inside(look_up, HOST), 80)
        got = await world.inside(exchange, where, head + chunked + b"0\r\n\r\n")
        assert got.endswith(came)
        assert got.count(b"d") >= len(came)
        assert origin.text.count(b"u") >= len(sent)
        assert asked > 10


@in_world
async def test_what_is_accepted_is_sent_as_it_was_judged(world: World) -> None:
    cases = tomllib.loads((CASES / "http1_requests_accepted.toml").read_text("utf-8"))["case"]
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)) as origin:
        where = (await world.inside(look_up, HOST), 80)
        wrong, tried = [], 0
        for case in cases:
            head, sent = case["head"].encode("latin-1"), case.get("sent", "").encode("latin-1")
            plain = (
                all(f"Host: {HOST}\r\n" in text for text in (case["head"], case.get("sent", "")))
                and case.get("host", HOST) == HOST
                and case.get("body", "none") == "none"
                and "pgrade" not in case["head"]
            )
            if not plain or not sent or case.get("scheme", "https") != "https" or head.lstrip().startswith(b"HEAD"):
                continue
            tried += 1
            origin.forget()
            answer = await world.inside(exchange, where, head, end=True)
            if status_of(answer) != 200 or origin.text != sent:
                wrong.append((case["name"], answer[:100], origin.text, sent))
        assert wrong == []
        assert tried > 10


@in_world
async def test_chunked_bodies_are_framed_anew(world: World) -> None:
    table = tomllib.loads((CASES / "http1_chunked.toml").read_text("utf-8"))
    head = f"POST /up HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while (await reader.readuntil(b"\r\n")) != b"0\r\n":
            pass
        while (await reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        writer.write(OK)

    async with world.broker(RULES, fixed=FIXED), world.origin(behave) as origin:
        where = (await world.inside(look_up, HOST), 80)
        for name, octets, sent, _data in table["passed"]:
            if "data that looks like framing" in name:
                continue  # too much for this origin's reading
            origin.forget()
            answer = await world.inside(exchange, where, head + octets.encode("latin-1"), end=True)
            assert status_of(answer) == 200, (name, answer)
            assert origin.text.partition(b"\r\n\r\n")[2] == sent.encode("latin-1"), (name, origin.text)
        for name, octets in table["refused"]:
            origin.forget()
            answer = await world.inside(exchange, where, head + octets.encode("latin-1") + SMUGGLED)
            assert b"200 OK" not in answer, (name, answer)
            # The last chunk is what would make it a whole request.
            assert not re.search(rb"\r\n0+\r\n.*\r\n\r\n", origin.text.partition(b"\r\n\r\n")[2]), (name, origin.text)
            assert b"smuggled" not in origin.text, (name, origin.text)


def keep_alive(where: tuple[str, int], *requests: bytes) -> list[bytes]:
    """Send requests one after the other over one connection; the answers until it ends."""
    answers = []
    with socket.create_connection(where, 10) as sock:
        for request in requests:
            try:
                sock.sendall(request)
                answer = b""
                while b"\r\n\r\n" not in answer and (piece := sock.recv(65536)):
                    answer += piece
                head, _, body = answer.partition(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                while length and len(body) < int(length[1]) and (piece := sock.recv(65536)):
                    body += piece
            except ConnectionError:
                break
            if not answer:
                break
            answers.append(answer)
    return answers


def request(path: str = "/", *, host: str = HOST, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


@in_world
async def test_each_request_of_a_connection_is_judged(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)) as origin:
        where = (await world.inside(look_up, OTHER), 80)
        for bad, status, reason in (
            (request("/secret", host=OTHER), 403, "path_not_allowed"),
            (request("/v1/../secret", host=OTHER), 403, "path_not_allowed"),
            (request("/v1/x", host=OTHER, method="PUT"), 403, "method_not_allowed"),
            (request("/v1/x", host=HOST), 421, "name_mismatch"),
            (request("/v1/x", host="evil.example"), 421, "name_mismatch"),
            (b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "name_mismatch"),
        ):
            origin.forget()
            before = len(world.records())
            answers = await world.inside(keep_alive, where, request("/v1/a", host=OTHER), bad)
            assert [status_of(one) for one in answers] == [200, status], (bad, answers)
            assert origin.text.count(b"HTTP/1.1\r\n") == 1
            assert [one["reason"] for one in world.records()[before:]] == ["rule_allow", reason]


@in_world
async def test_pipelined_requests_are_served_in_order_and_never_behind_a_denial(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)) as origin:
        where = (await world.inside(look_up, OTHER), 80)
        three = b"".join(request(f"/v1/{number}", host=OTHER) for number in range(3))
        answer = await world.inside(exchange, where, three, end=True)
        assert answer.count(b"200 OK") == 3
        assert re.findall(rb"GET (\S+)", origin.text) == [b"/v1/0", b"/v1/1", b"/v1/2"]
        origin.forget()
        mixed = request("/secret", host=OTHER) + request("/v1/behind", host=OTHER)
        answer = await world.inside(exchange, where, mixed, end=True)
        assert status_of(answer) == 403
        assert answer.count(b"HTTP/1.1 ") == 1
        assert origin.text == b""


RESPONSES = {
    "D22 an unasked 101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw",
    "D32 length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "D32 two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "D32 negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "D32 bad status": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "D32 0.9": b"<html>hello</html>\r\n\r\n",
    "D30 a flood of 1xx": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 1000 + OK,
    "D35 a huge head": b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 100_000 + b"\r\n\r\n",
    "D11 bare LF": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "nothing at all": b"",
}


@in_world
async def test_a_response_that_is_none_is_a_failure_of_the_upstream(world: World) -> None:
    response = b""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async with world.broker(RULES, fixed=FIXED), world.origin(behave):
        where = (await world.inside(look_up, HOST), 80)
        for name, octets in RESPONSES.items():
            response = octets
            answer = await world.inside(exchange, where, request(), end=True)
            assert b"HTTP/1.1 502 " in answer, (name, answer[-300:])
            record = world.records("close")[-1]
            assert record["verdict"] == "failure", (name, record)
            assert record["reason"] in {"upstream_protocol", "upstream_closed"}, (name, record)


async def _drain(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


@in_world
async def test_absolute_deadlines_hold_against_slow_clients_and_silent_upstreams(world: World) -> None:
    def drip(where: tuple[str, int], first: bytes) -> tuple[bytes, float]:
        begin = time.monotonic()
        with socket.create_connection(where, 20) as sock:
            sock.sendall(first)
            sock.settimeout(0.1)
            while True:
                try:
                    got = sock.recv(4096)
                except TimeoutError:
                    sock.sendall(b"X")
                    continue
                except ConnectionError:
                    got = b"RESET"
                return got, time.monotonic() - begin

    async with world.broker(RULES + FAST, fixed=FIXED), world.origin(_drain):
        where = (await world.inside(look_up, HOST), 80)
        answer, seconds = await world.inside(drip, where, f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Slow: ".encode())
        assert status_of(answer) == 408
        assert 0.8 < seconds < DEFAULTS["head_seconds"]
        begin = time.monotonic()
        answer = await world.inside(exchange, where, request())
        assert status_of(answer) == 504
        assert time.monotonic() - begin < DEFAULTS["upstream_head_seconds"]
        begin = time.monotonic()
        assert await world.inside(exchange, where, b"") in {b"", b"RESET"}
        assert time.monotonic() - begin < DEFAULTS["silent_seconds"]
        assert [one["reason"] for one in world.records() if one["verdict"] == "deny"] == [
            "head_timeout",
            "client_silent",
        ]


@in_world
async def test_huge_heads_are_refused_as_soon_as_they_are_too_large(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)) as origin:
        where = (await world.inside(look_up, HOST), 80)
        for head, status in (
            (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: {'a' * (1 << 20)}\r\n\r\n", 431),
            (f"GET / HTTP/1.1\r\nHost: {HOST}\r\n" + "".join(f"X{n}: 1\r\n" for n in range(500)) + "\r\n", 431),
            (f"GET /{'a' * 20_000} HTTP/1.1\r\nHost: {HOST}\r\n\r\n", 414),
            (f"{'A' * (1 << 20)}", 0),
        ):
            answer = await world.inside(exchange, where, head.encode())
            assert status_of(answer) == status or (not status and 400 <= status_of(answer) < 500), answer[:100]
        assert origin.text == b""


@in_world
async def test_a_first_event_passes_at_once(world: World) -> None:
    sent = 0.0
    head_was_read = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await head_was_read.wait()
        head_was_read.clear()
        sent = time.perf_counter()
        writer.write(b"9\r\ndata: 1\n\n\r\n")
        await reader.read()

    def first_event(where: tuple[str, int]) -> float:
        with socket.create_connection(where, 10) as sock:
            sock.sendall(request())
            got = sock.recv(65536)
            loop.call_soon_threadsafe(head_was_read.set)
            while b"data: 1" not in got:
                got += sock.recv(65536)
            return time.perf_counter()

    async with world.broker(RULES, fixed=FIXED), world.origin(behave):
        where = (await world.inside(look_up, HOST), 80)
        delays = []
        for _ in range(20):
            arrived = await world.inside(first_event, where)
            delays.append((arrived - sent) * 1000)
        print(f"first event after {sorted(delays)[10]:.2f} ms (median of 20)")
        # Not a timed promise: an order of magnitude below any buffering that waits for more.
        assert sorted(delays)[10] < 100


@in_world
async def test_the_connections_of_a_session_are_bounded(world: World) -> None:
    async with world.broker(RULES + FAST.replace("silent_seconds = 1", "silent_seconds = 30"), fixed=FIXED):
        where = (await world.inside(look_up, HOST), 80)

        def fill() -> list[bytes]:
            held = [socket.create_connection(where, 10) for _ in range(4)]
            fifth = exchange(where, request())
            for one in held:
                one.close()
            return [fifth]

        (fifth,) = await world.inside(fill)
        assert fifth in {b"RESET", b""} or status_of(fifth) == 503
        reasons = [one["reason"] for one in world.records()]
        assert "too_many_connections" in reasons


def fill_up(file: io.FileIO) -> None:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def use_up_descriptors() -> list[int]:
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    return held


@in_world
async def test_a_full_disk_stops_egress_and_nothing_else(world: World) -> None:
    (world.directory / "audit").mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", world.directory / "audit"], check=True)
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)) as origin:
        where = (await world.inside(look_up, HOST), 80)
        assert status_of(await world.inside(exchange, where, request(more="Connection: close\r\n"))) == 200
        with (world.directory / "audit" / "ballast").open("wb", buffering=0) as ballast:
            fill_up(ballast)
        outcomes = []
        for _ in range(40):
            before = len(origin.text)
            answer = await world.inside(exchange, where, request(more="Connection: close\r\n"))
            outcomes.append((status_of(answer), len(origin.text) - before))
        assert outcomes[-1][0] in {0, 503}, outcomes
        assert outcomes[-1][1] == 0, outcomes
        denied = await world.inside(
            exchange, (await world.inside(look_up, "evil.example"), 80), request(host="evil.example")
        )
        assert status_of(denied) in {403, 503, 0}
        (world.directory / "audit" / "ballast").unlink()
        deadline = time.monotonic() + 30
        while status_of(await world.inside(exchange, where, request(more="Connection: close\r\n"))) != 200:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert "gap" in {one.get("event") for one in world.records("checkpoint")}
    subprocess.run(["umount", "--lazy", world.directory / "audit"], check=True)


@in_world
async def test_running_out_of_descriptors_does_not_end_the_accepting(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED), world.origin(answering(OK)):
        where = (await world.inside(look_up, HOST), 80)
        waiting = socket.socket()  # made while there are descriptors
        late = socket.socket()
        for sock in (waiting, late):
            sock.close()

        def enough() -> bytes:
            return exchange(where, request(more="Connection: close\r\n"))

        assert status_of(await world.inside(enough)) == 200
        clients = await world.inside(lambda: [socket.socket() for _ in range(3)])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
        held = use_up_descriptors()

        def connect_all() -> None:
            for one in clients:
                one.connect(where)

        await world.inside(connect_all)
        await asyncio.sleep(0.3)  # the broker meets the limit: there is no event to wait for
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        def serve_them() -> list[int]:
            found = []
            for one in clients:
                one.settimeout(10)
                one.sendall(request(more="Connection: close\r\n"))
                found.append(status_of(read_all(one)))
            return found

        assert await world.inside(serve_them) == [200, 200, 200]
