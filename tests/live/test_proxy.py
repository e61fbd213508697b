"""The explicit proxy on gate:3128, for clients that insist: the same judgement, and strict about what it is sent."""

import json
from typing import Any

import pytest

from tests.live.gate import PYTHON, reaching, run
from tests.origins.process import HttpsOrigin

pytestmark = pytest.mark.live
NAME = "origin.example"
GATE = "198.19.255.1"
PROBE = """
import json, socket, sys
def ask(data):
    with socket.create_connection((sys.argv[1], 3128), 10) as s:
        s.sendall(data); s.settimeout(6); got = b""
        try:
            while piece := s.recv(65536): got += piece
        except (ConnectionResetError, TimeoutError): pass
        return got.decode("latin-1")
print(json.dumps([ask(one.encode("latin-1")) for one in json.loads(sys.stdin.read())]))
"""


def ask(lines: list[str], *options: str) -> tuple[list[str], Any]:
    ran = run(PYTHON, "-c", PROBE, GATE, options=options, stdin=json.dumps(lines))
    answers: list[str] = ran.document
    return answers, ran


@pytest.mark.parametrize("gate", [GATE, "[fd77:6963:6b65:7400::1]"])
def test_clients_that_are_told_of_it_get_through(https_origin: HttpsOrigin, gate: str) -> None:
    script = f"""
curl -sS -x http://{gate}:3128 https://{NAME}:{https_origin.https}/
curl -sS -x http://{gate}:3128 http://{NAME}:{https_origin.http}/
curl -sS -p -x http://{gate}:3128 http://{NAME}:{https_origin.http}/
"""
    ran = run("sh", "-c", script, options=reaching(https_origin, NAME))
    assert ran.out.splitlines() == ["hello from the origin"] * 3, ran.err
    assert ran.decisions(verdict="deny") == []


# Rows of the table of hostile inputs: what is sent, and the status codes that are right for it.
LINES: dict[str, tuple[str, set[int]]] = {
    "A02 two dots": ("CONNECT {n}..:443 HTTP/1.1\r\nHost: {n}..:443\r\n\r\n", {400}),
    "A02 leading dot": ("CONNECT .{n}:443 HTTP/1.1\r\nHost: .{n}:443\r\n\r\n", {400}),
    "A04 brackets": ("CONNECT [{n}]:443 HTTP/1.1\r\nHost: [{n}]:443\r\n\r\n", {400}),
    "A06 percent": ("CONNECT {n}%00.evil.com:443 HTTP/1.1\r\nHost: {n}%00.evil.com:443\r\n\r\n", {400}),
    "A07 userinfo": ("CONNECT {n}@evil.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n", {400}),
    "A07 userinfo, absolute": ("GET http://{n}@evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", {400}),
    "A08 backslash": ("GET http://evil.com\\@{n}/ HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A08 fragment": ("GET http://evil.com#@{n}/ HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A10 no port": ("CONNECT {n} HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A11 a URL": ("CONNECT https://{n}:443 HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A11 a path": ("CONNECT / HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A11 an asterisk": ("CONNECT * HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A12 another port": ("CONNECT {n}:22 HTTP/1.1\r\nHost: {n}:22\r\n\r\n", {403}),
    "A13 IPv6 literal": ("CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n", {403}),
    "A14 zone": ("CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\nHost: [fe80::1%25eth0]:443\r\n\r\n", {400}),
    "A16 hosts that differ": ("GET http://{n}/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", {400, 421}),
    "A19 origin form": ("GET / HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A20 https in clear": ("GET https://{n}/ HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A21 ftp": ("GET ftp://{n}/ HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A24 CRLF in the method": ("GE\r\nT http://{n}/ HTTP/1.1\r\nHost: {n}\r\n\r\n", {400}),
    "A25 TRACE": ("TRACE http://{n}/ HTTP/1.1\r\nHost: {n}\r\n\r\n", {405}),
    "A27 0.9": ("GET http://{n}/\r\n\r\n", {400, 505}),
    "A27 1.2": ("GET http://{n}/ HTTP/1.2\r\nHost: {n}\r\n\r\n", {400, 505}),
    "A29 itself": ("CONNECT 198.19.255.1:3128 HTTP/1.1\r\nHost: 198.19.255.1:3128\r\n\r\n", {403}),
    "A29 loopback": ("CONNECT 127.0.0.1:3128 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n", {403}),
    "B01 short address": ("CONNECT 127.1:443 HTTP/1.1\r\nHost: 127.1:443\r\n\r\n", {400, 403}),
    "B01 number": ("CONNECT 2130706433:443 HTTP/1.1\r\nHost: 2130706433:443\r\n\r\n", {400, 403}),
    "B08 mapped": ("CONNECT [::ffff:a9fe:a9fe]:80 HTTP/1.1\r\nHost: [::ffff:a9fe:a9fe]:80\r\n\r\n", {403}),
    "C13 localhost": ("CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\n", {403}),
    "D19 length": ("CONNECT {n}:443 HTTP/1.1\r\nHost: {n}:443\r\nContent-Length: 50\r\n\r\n", {400}),
    "D25 preface": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {0, 400, 405, 505}),
    "denied": ("GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
    "denied tunnel": ("CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", {403}),
}
TAIL = "GET http://origin.example/smuggled HTTP/1.1\r\nHost: origin.example\r\n\r\n"


def test_hostile_lines_are_refused_with_one_answer(https_origin: HttpsOrigin) -> None:
    options = ["--allow", NAME, *reaching(https_origin, NAME)]
    before = len(https_origin.seen())
    answers, ran = ask([line.format(n=NAME) + TAIL for line, _ in LINES.values()], *options)
    wrong = {}
    for (name, (_, right)), answer in zip(LINES.items(), answers, strict=True):
        status = int(answer[9:12]) if answer.startswith("HTTP/1.1 ") else 0
        if status not in right or answer.count("HTTP/1.1 ") > 1 + answer.count("HTTP/1.1 is"):
            wrong[name] = answer[:160]
    assert wrong == {}
    assert len(https_origin.seen()) == before
    assert ran.counts[0] == 0
    assert ran.counts[1] == len(LINES)


@pytest.mark.parametrize("spelling", ["{n}.", "ORIGIN.EXAMPLE"])
def test_one_canonical_form_is_judged(https_origin: HttpsOrigin, spelling: str) -> None:
    host = f"{spelling.format(n=NAME)}:{https_origin.http}"
    line = f"GET HTTP://{host} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    answers, ran = ask([line], *reaching(https_origin, NAME))
    assert answers[0].startswith("HTTP/1.1 200 "), answers
    assert [record["authority"] for record in ran.decisions()] == [f"{NAME}:{https_origin.http}"]


def test_a_tunnel_carries_what_is_judged_and_nothing_else(https_origin: HttpsOrigin) -> None:
    """SSH, silence or another name's TLS behind an accepted CONNECT."""
    port = https_origin.https
    connect = f"CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n"
    answers, ran = ask([connect + "SSH-2.0-OpenSSH\r\n"], *reaching(https_origin, NAME))
    assert answers[0].startswith("HTTP/1.1 200 ")
    assert "SSH" not in answers[0][12:]
    assert "unknown_protocol" in {record["reason"] for record in ran.decisions(verdict="deny")}
    script = f"""
import socket, ssl
s = socket.create_connection(("{GATE}", 3128), 10)
s.sendall(b"CONNECT {NAME}:{port} HTTP/1.1\\r\\nHost: {NAME}:{port}\\r\\n\\r\\n")
assert b" 200 " in s.recv(4096)
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
try:
    t = context.wrap_socket(s, server_hostname="other.origin.example")
    t.sendall(b"GET / HTTP/1.1\\r\\nHost: other.origin.example\\r\\n\\r\\n")
    print(t.recv(65536).decode())
except OSError as error: print("reset")
"""
    before = len(https_origin.seen())
    ran = run(PYTHON, "-c", script, options=reaching(https_origin, NAME))
    assert ran.out.strip() == "reset" or '"reason":"name_mismatch"' in ran.out
    assert len(https_origin.seen()) == before
    reasons = [record["reason"] for record in ran.decisions(verdict="deny")]
    assert reasons == ["name_mismatch"], (ran.out, ran.err)
