"""Names through the broker to a real upstream name server: asked after an allow, judged whole, dialled as judged."""

import asyncio
import time

import pytest

from broker.gateway.resolve import LOOKUPS_A_SESSION
from tests.broker.gateway.world import PUBLIC, World, exchange, in_world, look_up

pytestmark = pytest.mark.live
RULES = """
[[rule]]
name = "any"
action = "allow"
hosts = ["public.example", "public4.example", "loopback.example", "private.example", "metadata.example",
  "mixed.example", "mapped.example", "unique-local.example", "nat64.example", "rebind.example", "alias.example",
  "alias-private.example", "alias-loop.example", "many.example", "empty.example", "long-ttl.example",
  "truncated.example", "silent.example", "servfail.example", "refused.example", "formerr.example", "wrong-id.example",
  "garbage.example", "nowhere.example"]
ports = [80]
[limits]
resolve_seconds = 2
"""


def get(name: str) -> bytes:
    return exchange((look_up(name), 80), f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
    await writer.drain()
    await reader.read()


@in_world
async def test_nothing_is_asked_upstream_before_an_allowed_request(world: World) -> None:
    async with world.broker(RULES), world.origin(hello) as origin:
        for name in ("public4.example", "denied.example", "secret-0123456789.denied.example"):
            await world.inside(look_up, name)
        denied = await world.inside(get, "denied.example")
        assert denied.startswith(b"HTTP/1.1 403 ")
        assert world.names.asked == []
        assert (await world.inside(get, "public4.example")).endswith(b"hello")
        names = {one[12:].split(b"\0")[0] for one in world.names.asked}
        assert names == {b"\x07public4\x07example"}
        assert len(origin.received) == 1
        (allowed,) = [one for one in world.records() if one["verdict"] == "allow"]
        (close,) = world.records("close")
        assert close["dialled"] == f"{PUBLIC}:80"
        assert close["ref"] == allowed["id"]


DENIED = {
    "loopback.example": "127.0.0.1",
    "private.example": "10.1.2.3",
    "metadata.example": "169.254.169.254",
    "mixed.example": "192.168.7.7",
    "mapped.example": "10.0.0.1",
    "unique-local.example": "fd00:ec2::254",
    "nat64.example": "64:ff9b::a9fe:a9fe",
    "alias-private.example": "10.9.9.9",
}


@in_world
async def test_one_bad_address_refuses_the_whole_answer(world: World) -> None:
    async with world.broker(RULES), world.origin(hello, address="0.0.0.0") as origin:
        for name, culprit in DENIED.items():
            answer = await world.inside(get, name)
            assert answer.startswith(b"HTTP/1.1 403 "), (name, answer)
            reason = "self" if name == "loopback.example" else "address_refused"
            assert f'"reason":"{reason}"'.encode() in answer, (name, answer)
            record = [one for one in world.records("close") if one["authority"].startswith(name)][-1]
            assert (record["verdict"], record["reason"]) == ("deny", reason)
            assert reason == "self" or culprit.split(":")[0] in record["detail"], record
        assert origin.received == []


@in_world
async def test_an_answer_that_changes_is_dialled_as_it_was_judged(world: World) -> None:
    """Rebinding: public when judged, private when asked again. Each connection resolves once and dials that."""
    async with world.broker(RULES), world.origin(hello, address="0.0.0.0") as origin:
        first = await world.inside(get, "rebind.example")
        assert first.endswith(b"hello")
        asked = len(world.names.asked)
        second = await world.inside(get, "rebind.example")
        assert second.startswith(b"HTTP/1.1 403 ")
        assert len(world.names.asked) > asked  # judged anew, not from a cache
        assert len(origin.received) == 1
        assert [one["dialled"] for one in world.records("close") if one.get("dialled")] == [f"{PUBLIC}:80"]


FAILURES: dict[str, tuple[int, set[str]]] = {
    "nowhere.example": (502, {"name_not_found"}),
    "empty.example": (502, {"name_not_found"}),
    "alias-loop.example": (502, {"name_not_found", "resolve_failed"}),
    "servfail.example": (502, {"resolve_failed"}),
    "refused.example": (502, {"resolve_failed"}),
    "formerr.example": (502, {"resolve_failed", "name_not_found"}),
    "many.example": (502, {"resolve_failed"}),
    "silent.example": (504, {"resolve_timeout"}),
    "wrong-id.example": (504, {"resolve_timeout"}),
    "garbage.example": (502, {"resolve_failed"}),
}


@in_world
async def test_a_name_that_does_not_resolve_is_a_failure_and_never_hangs(world: World) -> None:
    async with world.broker(RULES):
        begin = time.monotonic()
        answers = await asyncio.gather(*(world.inside(get, name) for name in FAILURES))
        assert time.monotonic() - begin < 20
        for (name, (status, reasons)), answer in zip(FAILURES.items(), answers, strict=True):
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (name, answer[:200])
            (record,) = [one for one in world.records("close") if one["authority"].startswith(name)]
            assert record["verdict"] == "failure", record
            assert record["reason"] in reasons, record
        finished = await world.finish()
        assert (finished.allowed, finished.denied, finished.failures) == (len(FAILURES), 0, len(FAILURES))


@in_world
async def test_names_that_nobody_answers_hold_few_threads(world: World) -> None:
    """The resolver of the host goes on asking after our own deadline, and its threads are for all sessions."""
    hung = [f"hung-{number}.example" for number in range(12)]
    for name in hung:
        world.names._table[name] = {"behave": "silent"}
    names = ", ".join(f'"{name}"' for name in hung)
    rules = RULES.replace('"public.example"', names).replace("resolve_seconds = 2", "resolve_seconds = 0.2")
    async with world.broker(rules):
        for name in hung:  # each after the one before has timed out
            assert b" 504 " in await world.inside(get, name)
        assert len({one[12:].split(b"\0")[0] for one in world.names.asked}) == LOOKUPS_A_SESSION


@in_world
async def test_what_can_be_reached_is(world: World) -> None:
    async with world.broker(RULES), world.origin(hello):
        for name in ("public4.example", "alias.example", "long-ttl.example"):
            assert (await world.inside(get, name)).endswith(b"hello"), name


@in_world
async def test_the_search_list_of_the_host_is_not_used(world: World) -> None:
    async with world.broker(RULES):
        await world.inside(get, "nowhere.example")
        assert not [one for one in world.names.asked if b"search" in one]
