"""Whatever a payload tries reaches the broker or fails at once; nothing is silent, and TCP is always on record."""

import json
import re
import socket
from typing import Any

import pytest

from tests.live.gate import LOCAL, Ran, payload, run
from tests.origins.process import HttpsOrigin

pytestmark = pytest.mark.live
AT_ONCE = 50.0  # milliseconds, the bound for what is refused
NAMED = "198.18.0.1"  # the first name that a session asks for
GATE, GATE6 = "198.19.255.1", "fd77:6963:6b65:7400::1"
SANDBOX, SANDBOX6 = "198.19.255.2", "fd77:6963:6b65:7400::2"
REFUSED = {"EPERM", "ECONNREFUSED", "EACCES", "ENETUNREACH", "EHOSTUNREACH", "EINVAL"}

type Attempts = list[tuple[str, dict[str, Any]]]


def attempt(attempts: Attempts, *options: str) -> tuple[Ran, dict[str, Any]]:
    ran = run(*payload("attempts", json.dumps(attempts)), options=options or ("--allow", "api.example.com"))
    return ran, ran.document


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


DATAGRAMS: Attempts = [
    (
        f"{what} {'connected' if connected else 'unconnected'}",
        {"type": "udp", "address": address, "connected": connected},
    )
    for what, address in {
        "QUIC to a name's address": [NAMED, 443],
        "QUIC to an address": ["1.1.1.1", 443],
        "NTP": ["169.254.169.254", 123],
        "DNS over QUIC": ["8.8.8.8", 853],
        "the gate, odd port": [GATE, 54],
        "the gate's proxy port": [GATE, 3128],
        "beside the gate": ["198.19.255.3", 443],
        "WireGuard": ["203.0.113.7", 51820],
        "port 0": ["1.1.1.1", 0],
        "mDNS": ["224.0.0.251", 5353],
        "names by multicast": ["224.0.0.251", 53],
        "names by broadcast": ["255.255.255.255", 53],
        "DHCP": ["255.255.255.255", 67],
        "class E": ["240.0.0.1", 9],
        "QUIC over IPv6": ["2606:4700::1111", 443],
        "the gate over IPv6": [GATE6, 443],
        "beside the gate over IPv6": ["fd77:6963:6b65:7400::3", 443],
        "link-local IPv6": ["fe80::1", 443, 0, 1000],
        "multicast IPv6": ["ff02::fb", 5353, 0, 1000],
        "names by multicast IPv6": ["ff02::fb", 53, 0, 1000],
        "mapped IPv4": ["::ffff:1.1.1.1", 443],
        "NAT64": ["64:ff9b::101:101", 443],
    }.items()
    for connected in (False, True)
]
DATAGRAMS += [
    ("a fragmented datagram", {"type": "udp", "address": ["1.1.1.1", 443], "size": 60000}),
    ("a fragmented IPv6 datagram", {"type": "udp", "address": ["2606:4700::1111", 443], "size": 60000}),
    ("an empty datagram", {"type": "udp", "address": ["1.1.1.1", 443], "size": 0}),
    ("ping", {"type": "ping", "address": ["1.1.1.1", 0]}),
    ("ping IPv6", {"type": "ping", "address": ["2606:4700::1111", 0]}),
]


def test_every_datagram_is_refused_at_once() -> None:
    ran, outcomes = attempt(DATAGRAMS)
    late = {name: found for name, found in outcomes.items() if found["ms"] >= AT_ONCE}
    assert late == {}
    assert {name: found for name, found in outcomes.items() if found["outcome"] not in REFUSED} == {}
    print(f"slowest refusal: {max(found['ms'] for found in outcomes.values()):.2f} ms of {len(outcomes)}")
    (end,) = [record for record in ran.records if record.get("event") == "end"]
    refused = re.search(r"(\d+) packets refused", end["detail"])
    assert refused is not None
    # Connecting a socket sends nothing, and ping needs a socket that is not there.
    assert len(outcomes) - 6 <= int(refused[1]) <= 2 * len(outcomes)


def test_a_payload_that_tries_nothing_has_nothing_counted() -> None:
    ran = run("true", options=("--allow", "api.example.com"))
    (end,) = [record for record in ran.records if record.get("event") == "end"]
    assert end["detail"] == "0 name queries, 0 packets refused"
    assert ran.counts == (0, 0, 0)


FAMILIES = {
    "raw ICMP": (socket.AF_INET, socket.SOCK_RAW, 1),
    "raw": (socket.AF_INET, socket.SOCK_RAW, 255),
    "raw GRE": (socket.AF_INET, socket.SOCK_RAW, 47),
    "raw IPv6": (socket.AF_INET6, socket.SOCK_RAW, 58),
    "ICMP": (socket.AF_INET, socket.SOCK_DGRAM, 1),
    "ICMPv6": (socket.AF_INET6, socket.SOCK_DGRAM, 58),
    "SCTP": (socket.AF_INET, socket.SOCK_STREAM, 132),
    "SCTP messages": (socket.AF_INET, socket.SOCK_SEQPACKET, 132),
    "DCCP": (socket.AF_INET, 6, 33),
    "UDP-Lite": (socket.AF_INET, socket.SOCK_DGRAM, 136),
    "MPTCP": (socket.AF_INET, socket.SOCK_STREAM, 262),
    "SMC": (43, socket.SOCK_STREAM, 0),
    "packet": (17, socket.SOCK_RAW, 0x0300),
    "packet, cooked": (17, socket.SOCK_DGRAM, 0x0300),
    "XDP": (44, socket.SOCK_RAW, 0),
    "VSOCK": (40, socket.SOCK_STREAM, 0),
    "netfilter": (16, socket.SOCK_RAW, 12),
    "generic netlink": (16, socket.SOCK_RAW, 16),
    "XFRM": (16, socket.SOCK_RAW, 6),
    "audit": (16, socket.SOCK_RAW, 9),
    "uevent": (16, socket.SOCK_RAW, 15),
    "key": (15, socket.SOCK_RAW, 2),
    "ALG": (38, socket.SOCK_SEQPACKET, 0),
    "CAN": (29, socket.SOCK_RAW, 1),
    "TIPC": (30, socket.SOCK_DGRAM, 0),
    "RDS": (21, socket.SOCK_SEQPACKET, 0),
    "Bluetooth": (31, socket.SOCK_RAW, 1),
    "AX.25": (3, socket.SOCK_DGRAM, 0),
    "PPPoX": (24, socket.SOCK_DGRAM, 0),
    "KCM": (41, socket.SOCK_DGRAM, 0),
    "QRTR": (42, socket.SOCK_DGRAM, 0),
}


@pytest.mark.parametrize("options", [("--allow", "api.example.com"), ()], ids=["cable", "none"])
def test_no_other_kind_of_socket_can_be_made(options: tuple[str, ...]) -> None:
    attempts: Attempts = [
        (name, {"type": "socket", "family": int(family), "kind": int(kind), "protocol": protocol})
        for name, (family, kind, protocol) in FAMILIES.items()
    ]
    outcomes = run(*payload("attempts", json.dumps(attempts)), options=options).document
    assert {name: one["outcome"] for name, one in outcomes.items() if one["outcome"] == "made"} == {}
    assert {name: one["ms"] for name, one in outcomes.items() if one["ms"] >= AT_ONCE} == {}


LITERALS: list[list[Any]] = [
    ["1.1.1.1", 443],
    ["8.8.8.8", 22],
    ["8.8.8.8", 853],
    ["169.254.169.254", 80],
    ["10.0.0.1", 6443],
    ["240.0.0.1", 80],
    ["0.1.2.3", 80],
    [GATE, 1],
    [GATE, 22],
    ["198.19.255.0", 80],
    ["198.19.255.3", 80],
    ["198.18.77.77", 443],
    ["1.1.1.1", 65535],
    ["2606:4700::1111", 443],
    [GATE6, 80],
    ["fd77:6963:6b65:7400::3", 80],
    ["fe80::1", 80, 0, 1000],
    ["fec0::1", 80],
    ["64:ff9b::a9fe:a9fe", 80],
    ["2002:7f00:1::", 80],
    ["::1.2.3.4", 80],
    ["2001:db8::1", 443],
]


def test_every_address_is_captured_and_denied_on_record() -> None:
    attempts: Attempts = [
        (json.dumps(one), {"type": "tcp", "address": one, "send": "SSH-2.0-x\r\n"}) for one in LITERALS
    ]
    ran, outcomes = attempt(attempts)
    assert {name: one for name, one in outcomes.items() if one["outcome"] != "ECONNRESET"} == {}
    assert {name: one for name, one in outcomes.items() if one["ms"] >= 1000} == {}
    wanted = [f"{bracketed(one[0])}:{one[1]}" for one in LITERALS]
    assert sorted(record["wanted"] for record in ran.decisions(verdict="deny")) == sorted(wanted)
    assert ran.counts == (0, len(LITERALS), 0)


def test_silent_connections_are_denied_too() -> None:
    attempts: Attempts = [(json.dumps(one), {"type": "tcp", "address": one}) for one in LITERALS[:4]]
    ran, outcomes = attempt(attempts)
    assert {one["outcome"] for one in outcomes.values()} == {"ECONNRESET"}
    assert {name: one for name, one in outcomes.items() if one["ms"] >= 1500} == {}
    assert {record["reason"] for record in ran.decisions()} == {"address_literal"}


def test_a_mapped_address_is_the_address() -> None:
    ran, _ = attempt([("mapped", {"type": "tcp", "address": ["::ffff:1.1.1.1", 443], "send": "SSH-2.0-x\r\n"})])
    assert [record["wanted"] for record in ran.decisions()] == ["1.1.1.1:443"]


def test_port_0_is_refused_and_does_not_stop_the_others() -> None:
    attempts: Attempts = [
        (f"{number}", {"type": "tcp", "address": ["1.1.1.1", port], "send": "GET / HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n"})
        for number, port in enumerate([0, 80, 0, 80])
    ]
    ran, outcomes = attempt(attempts)
    assert [one["outcome"][:12] for one in outcomes.values()] == ["ECONNRESET", "received HTT"] * 2
    assert [record["reason"] for record in ran.decisions()] == ["bad_port", "address_literal"] * 2


OWN = {"127.0.0.1": 80, "127.0.0.2": 99, "0.0.0.0": 80, SANDBOX: 80, "::1": 80, "::": 80, SANDBOX6: 80}


def test_the_sandboxs_own_addresses_stay_its_own(https_origin: HttpsOrigin) -> None:
    """The host's loopback services are not there, and nobody answers for them."""
    ports = [https_origin.http, https_origin.https, 3128, 53]
    attempts: Attempts = [
        (f"{address} {port}", {"type": "tcp", "address": [address, port]}) for address in OWN for port in ports
    ]
    ran, outcomes = attempt(attempts, "--allow", "api.example.com", *LOCAL)
    assert {name: one for name, one in outcomes.items() if one["outcome"] != "ECONNREFUSED"} == {}
    assert ran.counts == (0, 0, 0)


def test_what_is_no_destination_fails_at_once() -> None:
    attempts: Attempts = [
        (where, {"type": "tcp", "address": [where, 80, 0, 1000] if ":" in where else [where, 80]})
        for where in ("224.0.0.1", "239.255.255.250", "255.255.255.255", "ff02::1", "ff0e::1")
    ]
    _, outcomes = attempt(attempts)
    assert {name: one for name, one in outcomes.items() if one["outcome"] not in REFUSED or one["ms"] >= AT_ONCE} == {}


@pytest.mark.parametrize("first", ["", "SSH-2.0-OpenSSH_9.9\r\n"], ids=["silent", "speaks first"])
@pytest.mark.parametrize("rule", ["ssh.example", "ssh.example:22"])
def test_ssh_to_an_allowed_host_is_denied_fast_and_on_record(first: str, rule: str) -> None:
    script = (
        "import socket, sys, time; s = socket.create_connection(('ssh.example', 22), 20); b = time.perf_counter()\n"
        "try: s.sendall(sys.argv[1].encode()); print(s.recv(100))\n"
        "except ConnectionResetError: print('reset', time.perf_counter() - b)"
    )
    ran = run(
        "/usr/bin/python3", "-c", script, first, options=("--allow", rule, "--resolve", "ssh.example:22:127.0.0.1")
    )
    word, seconds = ran.out.split()
    assert word == "reset"
    # Where a rule names the port, a silent client may still say something that is served: it has five seconds.
    assert float(seconds) < (0.4 if first else 7 if rule.endswith(":22") else 1.5)
    (record,) = ran.decisions()
    assert (record["verdict"], record["authority"]) == ("deny", "ssh.example:22")
    expected = {
        ("", "ssh.example"): "port_not_allowed",
        ("", "ssh.example:22"): "client_silent",
        ("SSH", "ssh.example"): "port_not_allowed",
        ("SSH", "ssh.example:22"): "unknown_protocol",
    }
    assert record["reason"] == expected[first[:3], rule]


@pytest.mark.parametrize("kind", ["fast_open", "multipath"])
def test_other_ways_to_open_tcp_fall_back(https_origin: HttpsOrigin, kind: str) -> None:
    port = https_origin.http
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    way: dict[str, Any] = {"type": "multipath"} if kind == "multipath" else {"type": "tcp", "fast_open": True}
    request = f"GET / HTTP/1.1\r\nHost: 8.8.8.8:{port}\r\nConnection: close\r\n\r\n"
    ran, outcomes = attempt([("it", {**way, "address": ["8.8.8.8", port], "send": request})])
    assert outcomes["it"]["outcome"].startswith("received HTTP/1.1 403")
    assert [record["wanted"] for record in ran.decisions()] == [f"8.8.8.8:{port}"]


def test_a_strange_source_or_route_reaches_nothing_else() -> None:
    """A source address that is not the sandbox's, and a route of the payload's choice (RFC 791 §3.1, RFC 7126)."""
    loose = "83" + "0b" + "04" + "08080808" + "01010101" + "00"
    request = "GET / HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n"
    attempts: Attempts = [
        ("source", {"type": "tcp", "address": ["1.1.1.1", 80], "send": request, "bind": ["9.9.9.9", 0]}),
        ("route", {"type": "tcp", "address": ["1.1.1.1", 80], "send": request, "options": loose}),
    ]
    _, outcomes = attempt(attempts)
    assert not {one["outcome"] for one in outcomes.values()} & {"received HTTP/1.1 200"}
    for one in outcomes.values():
        assert one["outcome"].startswith("received HTTP/1.1 403") or not one["outcome"].startswith("received")


def test_a_payload_cannot_change_its_network() -> None:
    ran = run(*payload("tamper"), options=("--allow", "api.example.com"))
    changed = [name for name, outcome in ran.document.items() if outcome == "done"]
    assert changed == []
    assert set(ran.document.values()) <= {
        *("EPERM", "EACCES", "EROFS", "ENOENT", "ENODEV", "EINVAL", "ENOSYS", "EOPNOTSUPP", "refused", "absent")
    }
