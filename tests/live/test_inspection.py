"""Inspection as a person meets it: `wicketgate run --allow HOST` and the usual clients, with nothing else set."""

import hashlib
import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from tests.live.gate import PYTHON, Ran, broker_of, finish, reaching, resident_mib, run, started
from tests.origins.process import HttpsOrigin, Origin

pytestmark = pytest.mark.live
HOST, OTHER = "api.origin.example", "other.origin.example"
GIB = 1 << 30


def test_each_request_is_judged_and_stands_in_the_log_with_its_path(https_origin: HttpsOrigin) -> None:
    url = f"https://{HOST}:{https_origin.https}"
    ran = run("sh", "-c", f"curl -sS {url}/ {url}/status/404?q=1 {url}/", options=reaching(https_origin, HOST))
    assert ran.out == "hello from the origin\n404\nhello from the origin\n"
    requests = ran.decisions(verdict="allow", plane="inspect")
    assert [one["path"].partition("?")[0] for one in requests] == ["/", "/status/404", "/"]
    assert len({one["dialled"] for one in ran.closes() if one.get("dialled")}) == 1


def test_a_denied_host_is_readable_under_a_valid_certificate(https_origin: HttpsOrigin) -> None:
    ran = run("curl", "-sS", f"https://{OTHER}:{https_origin.https}/secret", options=reaching(https_origin, HOST))
    problem = json.loads(ran.out)
    assert (ran.code, problem["reason"], problem["status"]) == (0, "host_not_allowed", 403)
    assert problem["reachable"] == [HOST] * problem["reachable_total"]
    (record,) = ran.decisions(verdict="deny")
    assert (record["id"], record["path"]) == (problem["record"], "/secret")


FRONTING = {
    "another Host": ["-H", f"Host: {OTHER}", "https://{host}:{port}/"],
    "another name at the allowed one's address": [
        "--connect-to",
        "{other}:{port}:{host}:{port}",
        "https://{other}:{port}/",
    ],
    "the allowed name at another's address": ["--connect-to", "{host}:{port}:{other}:{port}", "https://{host}:{port}/"],
    "an address, with the allowed name": ["--resolve", "{host}:{port}:192.0.2.7", "https://{host}:{port}/"],
    "a tunnel to the allowed name": [
        "-p",
        "-x",
        "http://198.19.255.1:3128",
        "--connect-to",
        "{other}:{port}:{host}:{port}",
        "https://{other}:{port}/",
    ],
    "absolute-form for plain HTTP": ["-x", "http://198.19.255.1:3128", "http://{other}:{port}/"],
}


@pytest.mark.parametrize("how", FRONTING)
def test_fronting_is_impossible(https_origin: HttpsOrigin, how: str) -> None:
    before = len(https_origin.seen())
    words = [word.format(host=HOST, other=OTHER, port=https_origin.https) for word in FRONTING[how]]
    ran = run("curl", "-sS", "-k", *words, options=reaching(https_origin, HOST))
    assert len(https_origin.seen()) == before
    assert not [one for one in ran.records if one.get("dialled")]
    (record,) = ran.decisions(verdict="deny")
    assert record["reason"] in {"name_mismatch", "host_not_allowed", "address_literal"}
    if ran.out:
        assert json.loads(ran.out)["reason"] == record["reason"]


NODE_HTTP2 = """
const session = require('http2').connect(process.argv[1], {}, () => {
  const fields = {':path': '/test.Echo/None', ':method': 'POST', 'content-type': process.argv[2], te: 'trailers'}
  const stream = session.request(fields)
  let status, body = ''
  stream.on('response', fields => { status = fields[':status'] })
  stream.on('data', piece => { body += piece })
  stream.on('end', () => { console.log(status, body.trim()); session.close() })
  stream.end()
})
session.on('error', fault => { console.log(String(fault)); process.exit(1) })
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_http2_without_an_alternative(grpc_origin: Origin, https_origin: HttpsOrigin) -> None:
    """Node's http2 offers nothing else. A server that has only HTTP/1.1 is a failure that says so."""

    def ask(origin: Origin, host: str, kind: str = "text/plain") -> tuple[Ran, str]:
        ran = run("node", "-e", NODE_HTTP2, f"https://{host}:{origin.https}", kind, options=reaching(origin, HOST))
        return ran, ran.out

    ran, out = ask(grpc_origin, HOST, "application/grpc")
    assert out.startswith("200 "), out + ran.err
    (record,) = ran.decisions(verdict="allow")
    assert (record["plane"], record["path"]) == ("h2", "/test.Echo/None")
    ran, out = ask(grpc_origin, OTHER)
    assert (out.split()[0], json.loads(out.partition(" ")[2])["reason"]) == ("403", "host_not_allowed")
    ran, out = ask(https_origin, HOST)
    assert (out.split()[0], json.loads(out.partition(" ")[2])["reason"]) == ("502", "upstream_protocol")


def test_curl_speaks_http1_where_it_offers_both(https_origin: HttpsOrigin) -> None:
    words = ["curl", "-sS", "--http2", "-o", "/dev/null", "-w", "%{http_version}"]
    assert run(*words, f"https://{HOST}:{https_origin.https}/", options=reaching(https_origin, HOST)).out == "1.1"


@pytest.mark.parametrize("scheme", ["wss", "ws"])
def test_a_websocket_converses(websocket_origin: Origin, scheme: str) -> None:
    port = websocket_origin.https if scheme == "wss" else websocket_origin.http
    program = Path(__file__).with_name("payloads") / "websocket.py"
    command = [PYTHON, "-I", "-c", program.read_text(), scheme, HOST, str(port)]
    ran = run(*command, options=reaching(websocket_origin, HOST))
    assert ran.out == "101 echoed 200 closed 1000\n", ran.err
    (close,) = [one for one in ran.closes() if one.get("status") == 101]
    assert close["reason"] in {"finished", "client_closed"}  # the client says nothing more, or goes
    assert close["bytes_up"] > 200 * 1000


@pytest.mark.parametrize("way", ["down", "up"])
def test_two_gigabytes_in_constant_memory(https_origin: HttpsOrigin, way: str) -> None:
    size = 2 * GIB
    url = f"https://{HOST}:{https_origin.https}"
    down = f"curl -sS {url}/chunked/{size} | wc -c"
    up = f"head -c {size} /dev/zero | curl -sS -T - -X POST {url}/upload"
    peak = 0.0
    with started(
        "sh", "-c", f"read go; {down if way == 'down' else up}", options=reaching(https_origin, HOST)
    ) as process:
        broker = broker_of(process)
        begin = resident_mib(broker)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.close()
        process.stdin = None
        while process.poll() is None:
            try:
                peak = max(peak, resident_mib(broker))
            except (AssertionError, OSError):
                break
            threading.Event().wait(0.1)
        ran = finish(process)
    print(f"{way}: {begin:.0f} MiB before, {peak:.0f} MiB at most")
    assert peak - begin < 48
    if way == "down":
        assert ran.out.strip() == str(size)
    else:
        assert json.loads(ran.out) == {"length": size, "sha256": _zeros(size)}
    (close,) = ran.closes(reason="finished")
    assert close["bytes_down" if way == "down" else "bytes_up"] >= size


def _zeros(size: int) -> str:
    digest, piece = hashlib.sha256(), bytes(1 << 20)
    for _ in range(size >> 20):
        digest.update(piece)
    return digest.hexdigest()


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_resets_do_not_end_the_broker(https_origin: HttpsOrigin, scheme: str) -> None:
    """A server that closes while it is written to, and a client that does, raise SIGPIPE where nobody ignores it."""
    port = https_origin.https if scheme == "https" else https_origin.http
    url = f"{scheme}://{HOST}:{port}"
    script = (
        f"for n in 1 2 3 4 5; do head -c 30000000 /dev/zero | curl -s -o /dev/null -T - -X POST {url}/early;"
        f" curl -s {url}/bytes/50000000 | head -c 10 >/dev/null; done; curl -sS {url}/"
    )
    ran = run("sh", "-c", script, options=reaching(https_origin, HOST))
    assert (ran.code, ran.out) == (0, "hello from the origin\n"), ran.err


def test_the_key_stays_in_the_broker(https_origin: HttpsOrigin, tmp_path: Path) -> None:
    """On disk it is in one file that only the broker's user reads; its memory cannot be read."""
    script = f"curl -sS https://{HOST}:{https_origin.https}/; read go"
    with started("sh", "-c", script, options=reaching(https_origin, HOST)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello from the origin\n"
        pid = broker_of(process)
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                Path(f"/proc/{pid}/mem").read_bytes()
        assert re.search(r"^CapEff:\t0+$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        ran = finish(process, "go\n")
    state = ran.log.parent
    keys = [path for path in state.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert keys
    assert {(path.stat().st_mode & 0o777, path.parent.name) for path in keys} <= {(0o600, keys[0].parent.name)}
    inside = run(
        "sh",
        "-c",
        "find / -xdev -type f -readable 2>/dev/null | grep -v ^/usr | xargs grep -ls 'PRIVATE KEY' 2>/dev/null",
        options=reaching(https_origin, HOST),
    )
    assert inside.out == ""
