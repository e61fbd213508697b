"""The origins do what their tables say, seen by clients that are not ours.

A live test is worth no more than its origin.
"""

import hashlib
import http.client
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rcode
import pytest
from websockets.sync.client import connect

from tests.origins.https_origin import pattern
from tests.origins.process import HttpsOrigin, NameServer, Origin


def get(origin: HttpsOrigin, path: str) -> bytes:
    url = f"https://localhost:{origin.https}{path}"
    with urllib.request.urlopen(url, context=origin.client_context(), timeout=10) as answer:
        body: bytes = answer.read()
    return body


def test_https_under_its_own_authority_only(https_origin: HttpsOrigin) -> None:
    assert get(https_origin, "/") == b"hello from the origin\n"
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://localhost:{https_origin.https}/", timeout=10)


def test_certificate_passes_strict_verification(https_origin: HttpsOrigin) -> None:
    context = https_origin.client_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with urllib.request.urlopen(f"https://localhost:{https_origin.https}/", context=context, timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("kind", ["bytes", "chunked", "close"])
def test_bodies_are_the_pattern(https_origin: HttpsOrigin, kind: str, length: int) -> None:
    assert get(https_origin, f"/{kind}/{length}") == pattern(length)


def test_connection_is_kept_alive(https_origin: HttpsOrigin) -> None:
    client = http.client.HTTPConnection(https_origin.address, https_origin.http, timeout=10)
    for _ in range(3):
        client.request("GET", "/bytes/10")
        assert client.getresponse().read() == pattern(10)
        port = client.sock.getsockname()[1]
        client.request("HEAD", "/bytes/10")
        assert client.getresponse().read() == b""
        assert client.sock.getsockname()[1] == port
    client.close()


def test_cut_body_is_cut(https_origin: HttpsOrigin) -> None:
    with pytest.raises(http.client.IncompleteRead):
        get(https_origin, "/cut/1000000")


def test_echo_keeps_target_headers_and_body(https_origin: HttpsOrigin) -> None:
    client = http.client.HTTPConnection(https_origin.address, https_origin.http, timeout=10)
    client.request("PATCH", "/echo/a%2fb/../c?x=%41", body=b"\x00\xff", headers={"X-Odd": "a,  b"})
    told = json.loads(client.getresponse().read())
    assert (told["method"], told["target"], told["body"]) == ("PATCH", "/echo/a%2fb/../c?x=%41", "AP8=")
    assert ["X-Odd", "a,  b"] in told["headers"]


def test_upload_and_record_of_requests(https_origin: HttpsOrigin) -> None:
    body = pattern(3_000_000)
    request = urllib.request.Request(f"http://127.0.0.1:{https_origin.http}/upload?mark=1", data=body, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer) == {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    last = https_origin.seen()[-1]
    assert (last["method"], last["target"], last["scheme"]) == ("PUT", "/upload?mark=1", "http")


def test_websocket_echo(websocket_origin: Origin) -> None:
    context = ssl.create_default_context(cafile=str(websocket_origin.cacert))
    with connect(f"wss://localhost:{websocket_origin.https}/", ssl=context) as client:
        for message in ("text", b"\x00binary", "x" * 200_000):
            client.send(message)
            assert client.recv(timeout=10) == message


def test_git_clone_and_push(git_origin: Origin, tmp_path: Path) -> None:
    settings = ["-c", "user.name=T", "-c", "user.email=t@origin.example"]
    # The variable of this name in a caller's environment would win over any setting.
    environment = {**os.environ, "GIT_SSL_CAINFO": str(git_origin.cacert), "GIT_CONFIG_GLOBAL": "/dev/null"}

    def git(*arguments: str, where: Path) -> str:
        command = ["git", *settings, *arguments]
        done = subprocess.run(command, cwd=where, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("clone", "-q", f"https://localhost:{git_origin.https}/project.git", "copy", where=tmp_path)
    copy = tmp_path / "copy"
    assert (copy / "README").read_text() == "served by git http-backend\n"
    git("commit", "-q", "--allow-empty", "-m", "second", where=copy)
    git("push", "-q", "origin", "HEAD:refs/heads/pushed", where=copy)
    assert git("ls-remote", "origin", "pushed", where=copy).split()[0] == git("rev-parse", "HEAD", where=copy).strip()


def ask(server: NameServer, name: str, kind: str = "A", *, tcp: bool = False) -> dns.message.Message:
    query = dns.message.make_query(name, kind)
    send = dns.query.tcp if tcp else dns.query.udp
    return send(query, server.address, port=server.port, timeout=5)


def values(message: dns.message.Message) -> list[str]:
    """The records' values in a fixed order: a name server may shuffle them, and this one does."""
    return sorted(item.to_text() for rrset in message.answer for item in rrset)


def test_names_by_table(name_server: NameServer) -> None:
    assert values(ask(name_server, "mixed.example")) == ["192.168.7.7", "93.184.215.14"]
    assert values(ask(name_server, "mixed.example", tcp=True)) == ["192.168.7.7", "93.184.215.14"]
    assert values(ask(name_server, "mapped.example", "AAAA")) == ["::ffff:10.0.0.1"]
    assert values(ask(name_server, "alias-private.example")) == ["10.9.9.9", "inner.example."]
    assert ask(name_server, "absent.example").rcode() == dns.rcode.NXDOMAIN
    assert ask(name_server, "servfail.example").rcode() == dns.rcode.SERVFAIL
    assert [query["name"] for query in name_server.queries()][:2] == ["mixed.example", "mixed.example"]
    assert name_server.queries() == []


def test_rebinding_name_changes_its_answer(name_server: NameServer) -> None:
    assert [values(ask(name_server, "rebind.example")) for _ in range(3)] == [
        ["93.184.215.14"],
        ["127.0.0.1"],
        ["127.0.0.1"],
    ]


def test_truncated_answer_is_whole_over_tcp(name_server: NameServer) -> None:
    assert values(ask(name_server, "truncated.example")) == []
    assert values(ask(name_server, "truncated.example", tcp=True)) == ["93.184.215.14"]


def test_silent_name_is_silent(name_server: NameServer) -> None:
    query = dns.message.make_query("silent.example", "A")
    with pytest.raises(dns.exception.Timeout):
        dns.query.udp(query, name_server.address, port=name_server.port, timeout=0.2)
    assert [query["name"] for query in name_server.queries()] == ["silent.example"]
