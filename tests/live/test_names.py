"""The name server: every way to ask it, and nothing that goes further than to it."""

import json
import re
import struct
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from tests.live.gate import LOCAL, payload, run
from tests.origins.process import HttpsOrigin

pytestmark = pytest.mark.live
SYNTHETIC = IPv4Network("198.18.0.0/15")
ALLOW = ("--allow", "api.example.com")
A, AAAA, SVCB, HTTPS, TXT, MX, SRV, NULL, ANY, AXFR = 1, 28, 64, 65, 16, 15, 33, 10, 255, 252
NXDOMAIN, NOTIMP = 3, 4
SERVERS = [
    "198.19.255.1",
    "8.8.8.8",
    "169.254.169.254",
    "198.18.0.1",
    "fd77:6963:6b65:7400::1",
    "2606:4700:4700::1111",
    "fe80::5",
]


def ask(questions: list[list[Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run(*payload("names", json.dumps(questions)), options=ALLOW).document
    return found


def test_any_server_answers_from_its_own_address_over_udp_and_tcp() -> None:
    questions = [
        [server, transport, "api.example.com", A]
        for server in SERVERS
        for transport in ("udp", "tcp", "tcp, half-closed")
    ]
    answers = ask(questions)
    assert len({one["address"] for one in answers}) == 1
    assert all(one["id"] and one["rcode"] == 0 and not one["tc"] for one in answers)
    assert IPv4Address(answers[0]["address"]) in SYNTHETIC
    assert max(one["ms"] for one in answers) < 4000, "less than what a client waits for an answer (5 s)"


def test_denied_and_allowed_names_look_alike() -> None:
    allowed, denied, again = ask(
        [["8.8.8.8", "udp", name, A] for name in ("api.example.com", "evil.example", "API.example.COM")]
    )
    assert IPv4Address(denied["address"]) in SYNTHETIC
    assert allowed["address"] == again["address"] != denied["address"]
    assert (allowed["rcode"], denied["rcode"]) == (0, 0)


@pytest.mark.parametrize("kind", [AAAA, SVCB, HTTPS])
def test_no_second_family_no_keys_no_hints(kind: int) -> None:
    (found,) = ask([["198.19.255.1", "udp", "api.example.com", kind]])
    assert (found["rcode"], found["answers"]) == (0, 0)


@pytest.mark.parametrize("kind", [TXT, MX, SRV, NULL, ANY, AXFR])
def test_other_types_carry_nothing(kind: int) -> None:
    for found in ask([["198.19.255.1", way, "api.example.com", kind] for way in ("udp", "tcp")]):
        assert found["rcode"] in {NXDOMAIN, NOTIMP}
        assert found["answers"] == 0


@pytest.mark.parametrize(
    "name",
    [
        *(
            "localhost",
            "a.localhost",
            "printer.local",
            "db.internal",
            "metadata.google.internal",
            "wpad",
            "wpad.example",
        ),
        *("host.docker.internal", "router.home.arpa", "intranet", "x.onion", "1.0.0.127.in-addr.arpa", "metadata"),
        *("kubernetes.default.svc", "127.1", "0x7f000001"),
    ],
)
def test_special_names_do_not_exist(name: str) -> None:
    (found,) = ask([["198.19.255.1", "udp", name, A]])
    assert (found["rcode"], found["answers"]) == (NXDOMAIN, 0)


RESOLVERS = {
    "getent": ("getent", "ahostsv4", "api.example.com"),
    "getent, either family": ("getent", "hosts", "api.example.com"),
    "python": ("/usr/bin/python3", "-c", "import socket; print(socket.gethostbyname('api.example.com'))"),
    "python, either family": (
        "/usr/bin/python3",
        "-c",
        "import socket; print(sorted({a[4][0] for a in socket.getaddrinfo('api.example.com', 443)}))",
    ),
    "node, by the C library": ("node", "-e", "require('dns').lookup('api.example.com', (e, a) => console.log(e || a))"),
    "node, by itself": ("node", "-e", "require('dns').resolve4('api.example.com', (e, a) => console.log(e || a))"),
}


@pytest.mark.parametrize("way", RESOLVERS)
def test_names_resolve_for(way: str) -> None:
    ran = run(*RESOLVERS[way], options=ALLOW)
    assert ran.code == 0, ran.err
    found = set(re.findall(r"\d+\.\d+\.\d+\.\d+", ran.out))
    assert len(found) == 1
    assert IPv4Address(found.pop()) in SYNTHETIC


def test_a_name_is_not_looked_up_in_the_hosts_domains() -> None:
    ran = run("sh", "-c", "getent hosts intranet; echo $?; cat /etc/resolv.conf", options=ALLOW)
    assert ran.out.split("\n")[0] == "2"
    assert "search" not in ran.out
    assert "domain" not in ran.out


FLOOD = """
import json, socket, struct, time
def query(n):
    head = struct.pack(">HHHHHH", n, 0x100, 1, 0, 0, 0)
    return head + b"".join(bytes([len(l)]) + l for l in (b"n%d" % n, b"example")) + b"\\0\\0\\1\\0\\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
got = []
for start in range(0, 20000, 50):
    for n in range(start, start + 50): s.sendto(query(n), ("8.8.8.8", 53))
    got += [struct.unpack_from(">HHHH", s.recv(600))[1] & 15 for _ in range(50)]
print(json.dumps({"ok": got.count(0), "missing": got.count(3), "all": len(got)}))
"""


def test_a_session_has_a_bounded_number_of_names() -> None:
    found = run("/usr/bin/python3", "-c", FLOOD, options=ALLOW, patience=120).document
    assert found == {"ok": 16384, "missing": 20000 - 16384, "all": 20000}


STREAMS = """
import json, socket, struct, sys, time
def query(n):
    return struct.pack(">HHHHHH", n, 0x100, 1, 0, 0, 0) + b"\\3api\\7example\\3com\\0\\0\\1\\0\\1"
def frame(m): return struct.pack(">H", len(m)) + m
def count(data, until_close=True):
    with socket.create_connection(("9.9.9.9", 53), 10) as s:
        s.sendall(data)
        got = b""
        try:
            while piece := s.recv(65536): got += piece
        except (ConnectionResetError, socket.timeout) as error: pass
    answers, at = 0, 0
    while at + 2 <= len(got):
        at += 2 + struct.unpack_from(">H", got, at)[0]; answers += 1
    return answers
print(json.dumps({
    "64 pipelined": count(b"".join(frame(query(n)) for n in range(64))),
    "more": count(b"".join(frame(query(n)) for n in range(500))),
    "tls": count(b"\\x16\\x03\\x01\\x02\\x00\\x01" + bytes(600)),
    "ssh": count(b"SSH-2.0-x\\r\\n"),
    "http": count(b"GET / HTTP/1.1\\r\\nHost: x.example\\r\\n\\r\\n"),
    "a response": count(frame(struct.pack(">HHHHHH", 1, 0x8180, 1, 0, 0, 0) + query(1)[12:])),
    "huge": count(b"\\xff\\xff" + bytes(70000)),
}))
"""


def test_a_stream_to_port_53_carries_queries_and_nothing_else() -> None:
    ran = run("/usr/bin/python3", "-c", STREAMS, options=ALLOW)
    found = ran.document
    assert found.pop("64 pipelined") == 64
    assert found.pop("more") <= 64
    assert set(found.values()) == {0}
    assert {record["wanted"] for record in ran.decisions(plane="dns")} == {"9.9.9.9:53"}
    assert sorted(record["reason"] for record in ran.decisions(plane="dns")) == ["bad_framing"] * 5 + ["rate_limited"]


CLOSERS = """
import socket
for n in range(400):
    s = socket.create_connection(("9.9.9.9", 53), 10)
    if n % 2: s.sendall(b"\\0\\1")
    s.close()
with socket.create_connection(("api.example.com", 80), 10) as s:
    s.sendall(b"GET / HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n")
    print(s.recv(12).decode())
"""


def test_connections_that_end_at_once_are_not_counted_for_ever() -> None:
    """More of them than a session may have open: each must be forgotten when it ends."""
    ran = run("/usr/bin/python3", "-c", CLOSERS, options=ALLOW)
    assert ran.out == "HTTP/1.1 421\n", (ran.out, ran.err)


def test_the_name_asked_and_the_host_named_must_agree(https_origin: HttpsOrigin) -> None:
    port = https_origin.http
    options = [*LOCAL]
    for name in ("origin.example", "other.origin.example"):
        options += ["--allow", f"{name}:{port}", "--resolve", f"{name}:{port}:127.0.0.1"]
    script = (
        f"curl -s -o /dev/null -w '%{{http_code}} ' http://origin.example:{port}/;"
        f"curl -s -o /dev/null -w '%{{http_code}} ' -H 'Host: other.origin.example:{port}' http://origin.example:{port}/;"
        f"curl -s -o /dev/null -w '%{{http_code}} ' http://ORIGIN.example.:{port}/"
    )
    before = len(https_origin.seen())
    ran = run("sh", "-c", script, options=options)
    assert ran.out.split() == ["200", "421", "200"]
    assert [one["host"] for one in https_origin.seen()[before:]] == [f"origin.example:{port}"] * 2
    assert [record["reason"] for record in ran.decisions()] == ["rule_allow", "name_mismatch", "rule_allow"]


MALFORMED = {
    "empty": b"",
    "no question": struct.pack(">HHHHHH", 1, 0x100, 0, 0, 0, 0),
    "two questions": struct.pack(">HHHHHH", 1, 0x100, 2, 0, 0, 0) + b"\1a\0\0\1\0\1" * 2,
    "pointer to itself": struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",
    "cut off": struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\3ap",
    "a response": struct.pack(">HHHHHH", 1, 0x8180, 1, 0, 0, 0) + b"\1a\0\0\1\0\1",
    "update": struct.pack(">HHHHHH", 1, 0x2800, 1, 0, 0, 0) + b"\1a\0\0\1\0\1",
    "large": struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + bytes(9000),
}


def test_malformed_queries_neither_break_nor_stop_it() -> None:
    script = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)\n"
        "for word in sys.argv[1:]: s.sendto(bytes.fromhex(word.removeprefix('x')), ('8.8.8.8', 53))\n"
        "print(socket.gethostbyname('api.example.com'))"
    )
    ran = run("/usr/bin/python3", "-c", script, *(f"x{one.hex()}" for one in MALFORMED.values()), options=ALLOW)
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
