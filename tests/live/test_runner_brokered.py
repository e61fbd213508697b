"""Sessions with a cable: the runner attaches to a real broker, survives its death, and comes back by itself."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.live.daemons import Daemon as BrokerDaemon
from tests.live.daemons import broker_daemon
from tests.live.runners import Daemon, daemon
from tests.live.runs import until
from tests.origins.process import HttpsOrigin
from wicketgate.runner.client import Authority, Call, Runner, RunnerError

pytestmark = pytest.mark.live
NAME = "origin.example"
RUNNER = 2  # of the daemon's processes


@pytest.fixture(scope="module")
def port(https_origin: HttpsOrigin) -> int:
    return https_origin.ports["http"]


@pytest.fixture(scope="module")
def broker(port: int) -> Iterator[BrokerDaemon]:
    rule = f'[[rule]]\nname = "origin"\naction = "allow"\nhosts = ["{NAME}"]\nports = [{port}]\n'
    rule += 'addresses = ["127.0.0.1/32"]\n'
    with broker_daemon(rule, extra=f'[resolve]\n"{NAME}:{port}" = ["127.0.0.1"]\n') as made:
        yield made


@pytest.fixture(scope="module")
def served(broker: BrokerDaemon) -> Iterator[Daemon]:
    with daemon(extra=f'attach = "{broker.attach}"') as made:
        yield made


def fetch(port: int, host: str = NAME) -> str:
    return f"curl -sS -m 10 -o /dev/null -w '%{{http_code}}' http://{host}:{port}/"


def issue(broker: BrokerDaemon) -> str:
    port = broker.extra.split('"')[1].split(":")[1]
    body = {"allow": [f"{NAME}:{port}"], "ttl_seconds": 600, "call": "call-1"}
    status, grant = broker.ask("POST", "/v1/grants", body)
    assert status == 201, grant
    return str(grant["id"])


async def test_what_the_grant_allows_is_reached_on_every_route(broker: BrokerDaemon, runner: Runner, port: int) -> None:
    authority = Authority(network="brokered", grant=issue(broker), call="call-1")
    assert (await runner.run(Call(bash=fetch(port)), authority)).stdout == b"200"
    async with runner.session(authority) as session:
        assert session.attached is True
        assert (await runner.run_in(session.id, Call(bash=fetch(port)))).stdout == b"200"
    job = await runner.start_job(Call(bash=fetch(port)), authority)
    assert (await runner.wait_job(job.id)).code == 0
    opened = await runner.open_terminal(authority=authority)
    assert "200" in (await runner.run_in_terminal(opened.id, fetch(port))).output
    await runner.close_terminal(opened.id)
    denied = await runner.run(Call(bash=fetch(port, "elsewhere.example")), authority)
    assert denied.stdout == b"403"


async def test_there_is_only_the_one_cable(broker: BrokerDaemon, runner: Runner) -> None:
    done = await runner.run(
        Call(bash="cut -d: -f1 /proc/net/dev | tail -n +3 | sort"), Authority(network="brokered", grant=issue(broker))
    )
    assert sorted(done.stdout.split()) == [b"eth0", b"lo"]


async def test_a_bridge_is_made_ahead_and_serves_one_session(broker: BrokerDaemon, port: int) -> None:
    with daemon(extra=f'attach = "{broker.attach}"\nparked = 0') as made:
        authority = Authority(network="brokered", grant=issue(broker))
        seen: set[bytes] = set()
        async with made.client() as runner, AsyncExitStack() as stack:
            for number in range(3):  # those after the first get the one that was made ahead
                await asyncio.to_thread(until, lambda number=number: has_networks(made, number + 1 if number else 0))
                session = await stack.enter_async_context(runner.session(authority))
                done = await runner.run_in(session.id, Call(bash=f"readlink /proc/self/ns/net; {fetch(port)}"))
                network, code = done.stdout.split()
                assert code == b"200"
                seen.add(network)
            assert len(seen) == 3
            await stack.aclose()
            await asyncio.to_thread(until, lambda: has_networks(made, 1))


def has_networks(made: Daemon, count: int) -> bool:
    """Whether the runner has so many bridges, in use or not. Only root may look: it shows nothing to its own user."""
    if os.geteuid() != 0:
        return True
    places = Path(f"/proc/{made.processes()[RUNNER]}/fd").iterdir()
    return sum(str(place.readlink()).startswith("net:") for place in places) // 2 == count  # and one for its own


async def test_a_grant_that_does_not_exist_starts_nothing(runner: Runner) -> None:
    with pytest.raises(RunnerError) as refused:
        await runner.run(Call(bash="echo ran"), Authority(network="brokered", grant="no-such-grant"))
    assert (refused.value.status, refused.value.code) == (503, "broker_failed")
    with pytest.raises(RunnerError) as without:
        await runner.run(Call(bash="echo ran"), Authority(grant="g"))
    assert (without.value.status, without.value.problem.field) == (400, "authority.network")


async def test_a_job_keeps_its_grant_and_a_session_its_network(broker: BrokerDaemon, runner: Runner, port: int) -> None:
    grant = issue(broker)
    job = await runner.start_job(Call(bash="sleep 0.2"), Authority(network="brokered", grant=grant))
    shown = (await runner.show_job(job.id)).rights
    assert (shown.grant, shown.network) == (grant, "brokered")
    async with runner.session() as session:
        assert session.attached is None
        done = await runner.run_in(session.id, Call(bash=fetch(port)))
        assert done.stdout == b"000", "a session without a network has none, whatever others were granted"


async def test_the_broker_dies_and_comes_back(broker: BrokerDaemon, runner: Runner, port: int) -> None:
    async with runner.session(Authority(network="brokered", grant=issue(broker))) as session:
        assert (await runner.run_in(session.id, Call(bash=fetch(port)))).stdout == b"200"
        await asyncio.to_thread(broker.kill)
        assert (await runner.run_in(session.id, Call(bash=fetch(port)))).stdout == b"000"
        with pytest.raises(RunnerError, match="broker_gone"):
            await runner.run(Call(bash="true"), Authority(network="brokered"))
        assert (await runner.run(Call(bash="echo fine"))).stdout == b"fine\n", "the daemon goes on"
        await asyncio.to_thread(broker.start)
        for _ in range(200):
            if (await runner.show_session(session.id)).attached:
                break
            await asyncio.sleep(0.05)
        assert (await runner.run_in(session.id, Call(bash=fetch(port)))).stdout == b"200"


async def test_the_end_of_a_session_is_the_end_of_its_lease(broker: BrokerDaemon, runner: Runner) -> None:
    async with runner.session(Authority(network="brokered", grant=issue(broker))) as session:
        assert session.id in {one["id"] for one in broker.ask("GET", "/v1/sessions")[1]["sessions"]}
    assert session.id not in {one["id"] for one in broker.ask("GET", "/v1/sessions")[1]["sessions"]}


async def test_a_parked_sandbox_gets_the_grant_that_it_is_released_with(
    broker: BrokerDaemon, runner: Runner, port: int
) -> None:
    """Its bridge was built ahead, too. The lease, and with it all that it may reach, comes at the release."""
    probe = "cut -d: -f1 /proc/net/dev | tail -n +3 | sort; env | sort; cat /etc/resolv.conf; ls -R /etc/ssl | md5sum"

    async def released() -> int:
        return (await runner.health()).released

    async def all_parked() -> int:
        """Both kinds, so that the next start takes one of either."""
        async with asyncio.timeout(30):
            while (health := await runner.health()).parked < 4:
                await asyncio.sleep(0.01)
        return health.released

    authority = Authority(network="brokered", grant=issue(broker), call="call-1")
    built = await runner.run(Call(argv=["/usr/bin/../bin/bash", "-c", probe]), authority)
    for _ in range(3):
        before = await all_parked()
        assert (await runner.run(Call(bash=probe), authority)).stdout == built.stdout
        assert await released() == before + 1
        assert (await runner.run(Call(bash=fetch(port)), authority)).stdout == b"200"
        before = await all_parked()
        with pytest.raises(RunnerError, match="broker_failed"):
            await runner.run(Call(bash="echo ran"), Authority(network="brokered", grant="no-such-grant"))
        before = await all_parked()
        grant = issue(broker)
        async with runner.session(Authority(network="brokered", grant=grant)) as session:
            served = {one["id"]: one["grant"] for one in broker.ask("GET", "/v1/sessions")[1]["sessions"]}
            assert served[session.id] == grant
        assert await released() == before + 1
        before = await all_parked()
        alone = await runner.run(Call(bash="ls /sys/class/net /proc/sys/net/ipv4/conf 2>/dev/null; " + fetch(port)))
        assert alone.stdout.endswith(b"000"), "and a session without a network gets none that was parked with one"
        assert b"eth0" not in alone.stdout
        assert await released() == before + 1
