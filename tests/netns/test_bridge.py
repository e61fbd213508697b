"""A bridge as the system's own tools see it: rules, routes, addresses, cost, and nothing left of it afterwards."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from netns.bridge import GATE_4, GATE_6, SANDBOX_4, SANDBOX_6
from sandbox.plan import NAME_SERVER
from tests.tree import ROOT

pytestmark = pytest.mark.live


def in_namespace(*words: str) -> dict[str, Any]:
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-m", "tests.netns.in_namespace", *words]
    # With a stray LD_PRELOAD or PYTHON variable the answer would be about something else.
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def bridge() -> dict[str, Any]:
    return in_namespace("describe")


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_bridge_captures_tcp_serves_names_and_refuses_the_rest(bridge: dict[str, Any]) -> None:
    rules = words(bridge["bridge"]["rules"])
    start = rules.index("chain capture {")
    assert rules[start + 1 : rules.index("}", start)] == [
        "type filter hook prerouting priority mangle; policy drop;",
        f"meta l4proto tcp tproxy to :{bridge['capture_port']} accept",
        "meta l4proto tcp reject with tcp reset",
        "udp dport 53 accept",
        'counter name "refused" reject',
    ]
    forward = rules.index("chain never {")
    assert rules[forward + 1] == "type filter hook forward priority filter; policy drop;"


def test_the_sandbox_refuses_before_it_sends(bridge: dict[str, Any]) -> None:
    rules = words(bridge["sandbox"]["rules"])
    start = rules.index("chain refuse {")
    assert rules[start + 1] == "type filter hook output priority filter; policy accept;"
    assert rules[start + 2 : start + 4] == ['oif "lo" accept', "meta l4proto tcp accept"]
    assert rules[rules.index("}", start) - 1] == 'counter name "refused" reject'


@pytest.mark.parametrize(("side", "interface"), [("bridge", "gate"), ("sandbox", "eth0")])
def test_each_side_has_two_interfaces_and_no_address_but_its_own(
    bridge: dict[str, Any], side: str, interface: str
) -> None:
    own = {"bridge": {str(GATE_4), str(GATE_6)}, "sandbox": {str(SANDBOX_4), str(SANDBOX_6)}}[side]
    found = {link["ifname"]: link for link in bridge[side]["addresses"]}
    assert set(found) == {"lo", interface}
    # No link-local address either: it would be tentative for a second and look for neighbours.
    assert {address["local"] for address in found[interface]["addr_info"]} <= own
    assert str(GATE_4 if side == "bridge" else SANDBOX_4) in {
        address["local"] for address in found[interface]["addr_info"]
    }
    assert all(address["prefixlen"] in {32, 128} for address in found[interface]["addr_info"])
    assert not any("tentative" in address for address in found[interface]["addr_info"])


def test_packets_pass_as_soon_as_it_is_built(bridge: dict[str, Any]) -> None:
    """While the kernel has not noticed the carrier, a first query would be lost, and asked again after seconds."""
    for side, interface in (("bridge", "gate"), ("sandbox", "eth0")):
        (state,) = [link["operstate"] for link in bridge[side]["addresses"] if link["ifname"] == interface]
        assert state == "UP"


def test_the_bridge_has_no_way_out(bridge: dict[str, Any]) -> None:
    routes = words(bridge["bridge"]["routes"])
    away = [route for route in routes if not re.match(r"(local|broadcast|multicast) ", route)]
    assert all(re.match(rf"({SANDBOX_4}|{SANDBOX_6}|{GATE_6}) dev gate ", route) for route in away)
    assert any(re.match(r"local default dev lo table 100 ", route) for route in routes)
    assert "100: from all iif gate lookup 100" in words(bridge["bridge"]["policy"])


def test_everything_of_the_sandbox_goes_to_its_one_neighbour(bridge: dict[str, Any]) -> None:
    defaults = [route for route in words(bridge["sandbox"]["routes"]) if route.startswith("default ")]
    assert defaults
    assert all(re.match(rf"default via ({GATE_4}|{GATE_6}) dev eth0", route) for route in defaults)
    neighbours = words(bridge["sandbox"]["neighbours"])
    assert {line.split()[0] for line in neighbours} <= {str(GATE_4), str(GATE_6)}
    assert all(line.endswith("PERMANENT") for line in neighbours)


def test_the_name_server_that_a_sandbox_is_told_is_the_gate() -> None:
    assert str(GATE_4) == NAME_SERVER


def test_many_bridges_leave_nothing() -> None:
    assert in_namespace("leave", "200") == {"descriptors": 0, "links": ["lo"]}


def test_the_time_to_build_one_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = in_namespace("time", "30")
    with capsys.disabled():
        print(f"\nbridge: median {found['median_ms']:.1f} ms of {found['rounds']}")
    assert found["rounds"] == 30
