"""Dialling through the real broker: exactly the judged addresses, in turn, and failures by their own names."""

import subprocess
import time
from ipaddress import ip_address

import pytest

from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.limits import DEFAULTS
from broker.policy.names import parse_host_name
from tests.broker.gateway.test_http_plane import OK, answering, request, status_of
from tests.broker.gateway.world import PUBLIC, World, exchange, in_world, look_up

pytestmark = pytest.mark.live
HOST = "api.example.com"
RULES = f"""
[[rule]]
name = "all"
action = "allow"
hosts = ["{HOST}"]
ports = [80]
[limits]
connect_seconds = 2
"""
SILENT, SILENT_TOO, CLOSED = "93.184.216.1", "93.184.216.2", "93.184.217.1"
DROP = f"""
table ip upstream {{
  chain out {{
    type filter hook output priority 0;
    ip daddr {{ {SILENT}, {SILENT_TOO} }} drop
  }}
}}
"""


def fixed(*addresses: str) -> dict[Authority, tuple[Address, ...]]:
    return {Authority(parse_host_name(HOST), 80): tuple(ip_address(one) for one in addresses)}


async def ask(world: World) -> tuple[int, float]:
    where = (await world.inside(look_up, HOST), 80)
    begin = time.monotonic()
    answer = await world.inside(exchange, where, request(host=HOST, more="Connection: close\r\n"))
    return status_of(answer), time.monotonic() - begin


OUTCOMES = {
    "closed, then open": ((CLOSED, PUBLIC), 200, "finished"),
    "silent, then open": ((SILENT, PUBLIC), 200, "finished"),
    "silent twice, then open": ((SILENT, SILENT_TOO, PUBLIC), 200, "finished"),
    "silent, then closed": ((SILENT, CLOSED), 502, "connect_refused"),
    "closed": ((CLOSED,), 502, "connect_refused"),
    "silent": ((SILENT,), 504, "connect_timeout"),
    "closed, then silent": ((CLOSED, SILENT), 504, "connect_timeout"),
}


@pytest.mark.parametrize("name", OUTCOMES)
@in_world
async def test_addresses_are_tried_in_turn(world: World, *, name: str) -> None:
    addresses, status, reason = OUTCOMES[name]
    subprocess.run(["nft", "-f", "-"], input=DROP, text=True, check=True)
    async with world.broker(RULES, fixed=fixed(*addresses)), world.origin(answering(OK)):
        found, seconds = await ask(world)
        assert found == status
        assert seconds < DEFAULTS["connect_seconds"], "the policy's limit is a shorter one"
        (close,) = world.records("close")
        assert close["reason"] == reason
        assert close.get("dialled", "") == (f"{PUBLIC}:80" if status == 200 else "")
