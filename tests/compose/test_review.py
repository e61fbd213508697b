"""The review page in the stack: what it shows to whom, what its container really is, that nothing of it is left."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.engine import Engine
from tests.compose.processes import mounts, status
from tests.compose.stack import BROKER, DENIED, REVIEW_PORT, Stack, what_is_left

TOKEN = "/var/lib/wicketgate-review/token"
LOG = "/var/lib/wicketgate/audit"


@pytest.fixture(scope="module")
def standing_page(standing_stack: Stack) -> Iterator[Stack]:
    yield standing_stack
    standing_stack.down()


@pytest.fixture
def reviewed(standing_page: Stack) -> Stack:
    """The stack with the review page, up and healthy."""
    standing_page.up("review")
    return standing_page


def fetch(stack: Stack, path: str, *options: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Ask as a person of the engine's host does, through the published port: status, header fields, body."""
    enter = ["nsenter", "--target", str(stack.engine.init), "--net", "--"]
    words = ["curl", "-sS", "-i", "--max-time", "60", *options, f"http://{host}:{REVIEW_PORT}{path}"]
    done = subprocess.run([*enter, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + stack.logs("review")
    head, _, body = done.stdout.replace("\r\n", "\n").partition("\n\n")
    return int(head.split()[1]), head, body


def signed_in(stack: Stack) -> tuple[str, str]:
    """Open the address with the token, found as compose.yaml says; the options that bear the cookie afterwards."""
    token = stack.compose("exec", "-T", "review", "cat", TOKEN).stdout.decode().strip()
    code, head, _ = fetch(stack, f"/?token={token}")
    assert code == 303, head
    (cookie,) = (line.partition(": ")[2] for line in head.splitlines() if line.lower().startswith("set-cookie"))
    return "--cookie", cookie.partition(";")[0]


def test_a_denied_request_of_a_sandbox_is_on_the_page(reviewed: Stack) -> None:
    denied = reviewed.sandboxed(
        "curl", "-sS", "--fail-with-body", f"https://{DENIED}/", grant=reviewed.grant("--call", "call-9")
    )
    assert denied.returncode == 22, denied
    record = json.loads(denied.stdout)["record"]

    cookie = signed_in(reviewed)

    code, _, overview = fetch(reviewed, "/", *cookie)
    assert (code, DENIED in overview, "call-9" in overview) == (200, True, True)
    code, _, page = fetch(reviewed, f"/records/{record}", *cookie)
    assert (code, DENIED in page, "host_not_allowed" in page) == (200, True, True), page
    for name in ("style.css", "live.js"):
        code, _, text = fetch(reviewed, f"/static/{name}", *cookie)
        assert (code, len(text) > 100) == (200, True), name


def test_without_the_token_it_shows_nothing(reviewed: Stack) -> None:
    for path, options in (("/", ()), ("/?token=" + "x" * 43, ()), ("/records", ("--cookie", "wicketgate_review=x"))):
        code, _, body = fetch(reviewed, path, *options)
        assert (code, DENIED in body) == (403, False), path
    assert fetch(reviewed, "/", host="localhost")[0] == 403
    assert fetch(reviewed, "/", "--header", "Host: rebound.example")[0] == 421
    said = reviewed.logs("review")
    token = reviewed.call("review", "cat", TOKEN).stdout.decode().strip()
    assert f"http://127.0.0.1:{REVIEW_PORT}/" in said
    assert token not in said


def test_the_same_browser_is_let_in_when_the_page_was_started_anew(reviewed: Stack) -> None:
    cookie = signed_in(reviewed)
    before = reviewed.engine.inspect(reviewed.container("review"))["Id"]
    reviewed.compose("--profile", "review", "rm", "--stop", "--force", "review")
    reviewed.up("review")
    assert reviewed.engine.inspect(reviewed.container("review"))["Id"] != before
    assert fetch(reviewed, "/", *cookie)[0] == 200


def test_what_its_container_really_is(reviewed: Stack) -> None:
    pid = reviewed.engine.host_pid(reviewed.container("review"))
    told, seen = status(pid), mounts(pid)
    assert told["Uid"].split() == told["Gid"].split() == [str(BROKER)] * 4
    assert {int(told[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
    assert "ro" in seen["/"]
    assert "ro" in seen[LOG]
    assert "rw" in seen["/var/lib/wicketgate-review"]
    assert not {"/var/lib/wicketgate", "/run/wicketgate", "/etc/wicketgate", "/workspaces"} & set(seen)
    reads = f"""
    ls /var/lib/wicketgate
    (: >{LOG}/new) 2>/dev/null && echo 'can write beside the log'
    for file in {LOG}/*.jsonl; do (: >>$file) 2>/dev/null && echo "can write $file"; done
    stat -c %a {TOKEN} /var/lib/wicketgate-review/index.sqlite3
    """
    assert reviewed.call("review", "sh", "-c", reads).stdout.split() == [b"audit", b"600", b"600"]


def test_its_network_leads_nowhere(reviewed: Stack) -> None:
    """To no other service, and no reply finds the way to it from beyond the host."""
    engine = reviewed.engine
    pid = engine.host_pid(reviewed.container("review"))
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    assert {line.partition(":")[0].strip() for line in lines} == {"lo", "eth0"}
    others = [engine.inspect(reviewed.container(name)) for name in ("origin", "broker", "agent")]
    addresses = [net["IPAddress"] for one in others for net in one["NetworkSettings"]["Networks"].values()]
    try_each = """
import socket, sys
for address in sys.argv[1:]:
    for port in (443, 8080):
        try: socket.create_connection((address, port), timeout=2)
        except OSError: continue
        print(address, port)
try: print(socket.getaddrinfo("api.origin.example", 443))
except OSError: pass
"""
    python = ("/opt/wicketgate/bin/python", "-Ic", try_each)
    done = reviewed.call("review", *python, *addresses)
    assert (done.returncode, done.stdout) == (0, b""), done
    oracle = reviewed.call("broker", *python, addresses[0]).stdout.decode()
    assert oracle.startswith(f"{addresses[0]} 443\n")
    rules = engine.run("iptables", "-t", "nat", "-S", "POSTROUTING").stdout.decode()

    def subnet(name: str) -> str:
        return str(
            json.loads(engine.docker("network", "inspect", f"wicketgate_{name}"))[0]["IPAM"]["Config"][0]["Subnet"]
        )

    assert f"-s {subnet('egress')} " in rules
    assert f"-s {subnet('review')} " not in rules
    assert engine.inspect(reviewed.container("review"))["HostConfig"]["Dns"] == ["127.0.0.1"]


def test_down_leaves_nothing_of_it(engine: Engine, reviewed: Stack) -> None:
    assert "wicketgate_review-state" in what_is_left(engine)["volumes"]
    reviewed.down()
    left = what_is_left(engine)
    assert not any(left.values()), left
