"""Real clients through the gate. None of them is told of a proxy, and none is configured for one."""

import json
import os
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from socket import getaddrinfo
from urllib.parse import urlsplit

import pytest

from tests.live.gate import LOCAL, PYTHON, Ran, reaching, run
from tests.origins.process import HttpsOrigin, Origin

pytestmark = pytest.mark.live
NAME, DENIED = "origin.example", "other.origin.example"
HELLO = "hello from the origin"


def allowed(ran: Ran, authority: str) -> None:
    """The run ended well, was allowed what it asked for, and its log says so and to where."""
    assert ran.code == 0, (ran.out, ran.err)
    decisions = ran.decisions(verdict="allow")
    assert decisions
    assert {record["authority"] for record in decisions} == {authority}
    assert {record["reason"] for record in decisions} == {"rule_allow"}
    assert ran.decisions(verdict="deny") == []
    assert any(record.get("dialled") for record in ran.closes())


@pytest.mark.smoke
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_curl(https_origin: HttpsOrigin, scheme: str) -> None:
    port = https_origin.ports[scheme]
    ran = run("curl", "-sS", "--max-time", "20", f"{scheme}://{NAME}:{port}/", options=reaching(https_origin, NAME))
    assert ran.out.strip() == HELLO, ran.err
    allowed(ran, f"{NAME}:{port}")
    assert ran.counts[1:] == (0, 0)


@pytest.mark.smoke
def test_curl_is_denied_readably_in_clear(https_origin: HttpsOrigin) -> None:
    before = len(https_origin.seen())
    ran = run("curl", "-sS", "-i", f"http://{DENIED}:{https_origin.http}/x", options=reaching(https_origin, NAME))
    head, _, body = ran.out.replace("\r", "").partition("\n\n")
    assert head.startswith("HTTP/1.1 403 ")
    assert "content-type: application/problem+json" in head.lower()
    problem = json.loads(body)
    assert (problem["status"], problem["reason"], problem["rule"]) == (403, "host_not_allowed", None)
    assert DENIED in problem["detail"]
    assert problem["reachable"] == [NAME]
    (record,) = ran.decisions()
    assert (record["id"], record["verdict"], record["reason"]) == (problem["record"], "deny", "host_not_allowed")
    assert len(https_origin.seen()) == before
    assert ran.counts == (0, 1, 0)


def test_curl_is_denied_over_tls(https_origin: HttpsOrigin) -> None:
    before = len(https_origin.seen())
    ran = run(
        "curl", "-sS", "-o", "-", f"https://{DENIED}:{https_origin.https}/x", options=reaching(https_origin, NAME)
    )
    # A reset, or under inspection the problem document: never the origin's answer.
    assert ran.code != 0 or json.loads(ran.out)["reason"] == "host_not_allowed"
    assert [(one["verdict"], one["reason"]) for one in ran.decisions()] == [("deny", "host_not_allowed")]
    assert len(https_origin.seen()) == before


PROGRAMS = {
    "urllib": "import urllib.request; print(urllib.request.urlopen(URL, timeout=20).read().decode())",
    "urllib, no environment": (
        "import os, subprocess, sys; p = 'import ssl, sys, urllib.request as u; c = ssl.create_default_context();"
        "print(u.urlopen(sys.argv[1], timeout=20, context=c).read().decode())';"
        "subprocess.run([sys.executable, '-c', p, URL], env={}, check=True)"
    ),
    "requests": "import requests; print(requests.get(URL, timeout=20).text)",
    "aiohttp": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as session, session.get(URL) as answer: print(await answer.text())
asyncio.run(main())
""",
}


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("library", PROGRAMS)
def test_python(https_origin: HttpsOrigin, library: str, scheme: str) -> None:
    port = https_origin.ports[scheme]
    program = f"URL = '{scheme}://{NAME}:{port}/'\n{PROGRAMS[library]}"
    ran = run(PYTHON, "-c", program, options=reaching(https_origin, NAME))
    assert ran.out.strip() == HELLO, ran.err
    allowed(ran, f"{NAME}:{port}")


NODE = {
    "fetch": "fetch(TARGET).then(r => r.text()).then(console.log)",
    "https": "require(TARGET.split(':')[0]).get(TARGET, r => r.on('data', d => process.stdout.write(d)))",
    "fetch, kept alive": (
        "(async () => { for (let i = 0; i < 3; i++) console.log(await (await fetch(TARGET)).text()) })()"
    ),
}


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("way", NODE)
def test_node(https_origin: HttpsOrigin, way: str, scheme: str) -> None:
    port = https_origin.ports[scheme]
    program = f"const TARGET = '{scheme}://{NAME}:{port}/';\n{NODE[way]}"
    ran = run("node", "-e", program, options=reaching(https_origin, NAME))
    assert HELLO in ran.out, ran.err
    allowed(ran, f"{NAME}:{port}")


def test_node_cannot_swallow_a_denial(https_origin: HttpsOrigin) -> None:
    program = f"fetch('http://{DENIED}:{https_origin.http}/').then(r => console.log(r.status))"
    ran = run("node", "-e", program, options=reaching(https_origin, NAME))
    assert ran.out.strip() == "403"


def test_git_clones_and_pushes_over_https(git_origin: Origin, workspace: Path) -> None:
    url = f"https://{NAME}:{git_origin.https}/project.git"
    script = f"""
set -e
git clone -q {url} work
cd work
git config user.email a@b.example && git config user.name somebody
git checkout -q -b feature-$$
head -c 300000 /dev/urandom > more
git add more && git commit -qm more
git push -q origin HEAD
git ls-remote origin "refs/heads/feature-$$" | wc -l
git fsck --full 2>&1 | grep -c error || true
"""
    options = [*reaching(git_origin, NAME), "--workspace", str(workspace)]
    ran = run("sh", "-c", script, options=options)
    assert ran.out.split() == ["1", "0"], ran.err
    allowed(ran, f"{NAME}:{git_origin.https}")
    assert sum(record.get("bytes_up", 0) for record in ran.closes()) > 300_000
    assert sum(record.get("bytes_down", 0) for record in ran.closes()) > 1 << 20


SOCKET = """
import {{ WebSocket }} from '{library}';
const s = new WebSocket('{url}');
const heard = [];
s.addEventListener('open', () => {{ s.send('one'); s.send(new Uint8Array(200000)); }});
s.addEventListener('message', m => {{
  heard.push(typeof m.data === 'string' ? m.data : String(m.data.byteLength ?? m.data.size ?? m.data.length));
  if (heard.length === 2) s.send('close 4001');
}});
s.addEventListener('close', e => {{ console.log([...heard, e.code].join(' ')); process.exit(0); }});
s.addEventListener('error', e => {{ console.log('error', e.message); process.exit(1); }});
"""


@pytest.mark.parametrize("scheme", ["wss", "ws"])
def test_node_ws(websocket_origin: Origin, workspace: Path, scheme: str) -> None:
    packed = subprocess.run(
        ["npm", "pack", "--silent", "ws@8"], cwd=workspace, check=True, capture_output=True, text=True
    )
    package = workspace / "node_modules" / "ws"
    package.mkdir(parents=True)
    archive = workspace / packed.stdout.strip()
    subprocess.run(["tar", "-xzf", archive, "-C", package, "--strip-components=1", "--no-same-owner"], check=True)
    subprocess.run(["chmod", "-R", "a+rX", workspace / "node_modules"], check=True)
    port = websocket_origin.ports["https" if scheme == "wss" else "http"]
    program = SOCKET.format(library="ws", url=f"{scheme}://{NAME}:{port}/")
    (workspace / "talk.mjs").write_text(program)
    options = [*reaching(websocket_origin, NAME), "--workspace", str(workspace)]
    ran = run("node", "talk.mjs", options=options)
    assert ran.out.split() == ["one", "200000", "4001"], ran.err
    allowed(ran, f"{NAME}:{port}")


def index_options(url: str) -> tuple[str, list[str]]:
    """The host of a package index, and the options for exactly it: whatever it resolves to is opened."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    options = ["--allow", f"{parts.hostname}:{port}"]
    for address in {str(entry[4][0]) for entry in getaddrinfo(parts.hostname, port)}:
        options += ["--private", f"{address}/{ip_address(address).max_prefixlen}"]
    for variable in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        if Path(os.environ.get(variable, "")).is_file():
            options += ["--cacert", os.environ[variable]]
    return parts.hostname, options


def quietly(script: str, options: list[str]) -> tuple[int, int, int]:
    """Run; the exit code, denials and failures. The index's name and address are nobody's business: none is shown."""
    try:
        ran = run("sh", "-c", script, options=options)
    except subprocess.TimeoutExpired:
        return -1, 0, 0
    return ran.code, *(ran.counts[1:] if ran.summary else (-1, -1))


def configured(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def test_pip_downloads_from_the_index_of_this_machine(workspace: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    found = configured(*pip, "config", "get", "global.index-url") or configured(
        *pip, "config", "get", "install.index-url"
    )
    default = configured(sys.executable, "-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)")
    url = os.environ.get("PIP_INDEX_URL") or found or default
    host, options = index_options(url)
    files = configured(sys.executable, "-c", FILES_OF, url)
    for other in filter(None, {urlsplit(one).hostname for one in files.split()} - {host}):
        options += index_options(f"https://{other}/")[1]
    script = f"pip3 download -q --no-deps --no-cache-dir --index-url '{url}' -d . idna && ls"
    outcome = quietly(script, [*options, "--workspace", str(workspace)])
    assert list(workspace.glob("idna-*.whl"))
    assert outcome == (0, 0, 0)


FILES_OF = """
import re, sys, urllib.parse, urllib.request
page = sys.argv[1].rstrip("/") + "/idna/"
text = urllib.request.urlopen(page, timeout=20).read().decode()
print("\\n".join(urllib.parse.urljoin(page, one) for one in re.findall(r'href="([^"#]+)', text)[-3:]))
"""


def test_npm_downloads_from_the_registry_of_this_machine(workspace: Path) -> None:
    url = configured("npm", "config", "get", "registry")
    host, options = index_options(url)
    tarball = configured("npm", "view", "isarray", "dist.tarball")
    if tarball and urlsplit(tarball).hostname not in {host, None}:
        options += index_options(tarball)[1]
    script = f"npm pack --silent --registry '{url}' isarray && ls"
    outcome = quietly(script, [*options, "--workspace", str(workspace)])
    assert list(workspace.glob("isarray-*.tgz"))
    assert outcome == (0, 0, 0)


def test_a_clients_own_proxy_settings_change_nothing(https_origin: HttpsOrigin) -> None:
    """`--noproxy`, NO_PROXY and an emptied environment: there is no other way out to be found."""
    port = https_origin.https
    script = f"""
curl -sS --noproxy '*' https://{NAME}:{port}/
NO_PROXY='*' no_proxy='*' curl -sS https://{NAME}:{port}/
env -i /usr/bin/curl -sS https://{NAME}:{port}/
curl -sS --max-time 5 https://1.1.1.1/ || echo no
curl -sS --max-time 5 --noproxy '*' -o /dev/null -w '%{{http_code}}' http://1.1.1.1/
"""
    ran = run("sh", "-c", script, options=[*reaching(https_origin, NAME), *LOCAL])
    lines = ran.out.splitlines()
    assert lines[:3] == [HELLO] * 3, ran.err
    assert lines[-1] in {"403", "000", "no403", "no000"}
    assert {one["reason"] for one in ran.decisions(verdict="deny")} == {"address_literal"}
