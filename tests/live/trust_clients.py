"""The clients of the trust-kit matrix: how each fetches one HTTPS address, and whether it is installed here.

Each command runs in a mount namespace with nothing of the host's trust, prints what it fetched, and fails when it does
not accept the server's certificate.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ANSWER = "answer-from-behind-the-gate"
PACKAGE = "parcel"
PYTHON = Path("/usr/bin/python3")
URLLIB = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=20).read().decode())"
REQUESTS = "import sys, requests; print(requests.get(sys.argv[1], timeout=20).text)"
AIOHTTP = """
import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as answer:
        print(await answer.text())
asyncio.run(main())
"""
HTTPX = "import sys, httpx; print(httpx.get(sys.argv[1], timeout=20).text)"
# Debian links it with GnuTLS, as it does git's own curl.
PYCURL = """
import sys, pycurl
assert 'GnuTLS' in pycurl.version
curl = pycurl.Curl()
curl.setopt(pycurl.URL, sys.argv[1])
curl.setopt(pycurl.FAILONERROR, True)
curl.perform()
"""
# The program itself: Debian's wrapper reads /etc. Its own sandbox cannot be built inside another one.
CHROMIUM = ["/usr/lib/chromium/chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
CHROMIUM += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--dump-dom"]
NODE_HTTPS = """
require('https').get(process.argv[1], r => { r.pipe(process.stdout) })
    .on('error', e => { console.error(e); process.exit(1) })
"""
NODE_FETCH = """
fetch(process.argv[1]).then(r => r.text()).then(console.log, e => { console.error(e); process.exit(1) })
"""
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Fetch {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(args[0])).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""
GO = """
package main

import ("io"; "net/http"; "os")

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil { println(err.Error()); os.Exit(1) }
	io.Copy(os.Stdout, answer.Body)
}
"""
RUBY = "require 'net/http'; puts Net::HTTP.get(URI(ARGV[0]))"
PERL = "use HTTP::Tiny; my $r = HTTP::Tiny->new(verify_SSL => 1)->get(shift); print $r->{content}; exit !$r->{success}"
LWP = "use LWP::UserAgent; my $r = LWP::UserAgent->new->get(shift); print $r->content; exit !$r->is_success"
PHP = "$body = file_get_contents($argv[1]); if ($body === false) exit(1); echo $body;"


@dataclass(frozen=True, kw_only=True)
class Client:
    """`command` gets the base address and a private directory. `bind`: host directories it needs beside /usr."""

    name: str
    command: Callable[[str, Path], list[str]]
    installed: Callable[[], bool]
    wants: str = ANSWER  # what only an answer of the server brings to standard output
    files_alone: bool = True  # trusts the kit's files with no variable set
    bind: tuple[str, ...] = ()
    own: tuple[tuple[str, str], ...] = ()  # settings that are not about trust


def has(*programs: str) -> Callable[[], bool]:
    return lambda: all((shutil.which(name, path="/usr/bin:/usr/local/bin:/usr/local/go/bin")) for name in programs)


def runs(*command: str) -> Callable[[], bool]:
    def check() -> bool:
        try:
            return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
        except OSError:
            return False

    return check


def source(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def _rust() -> str:
    found = shutil.which("rustc")
    if not found:
        return ""
    shown = subprocess.run([found, "--print", "sysroot"], capture_output=True, text=True, check=False, cwd="/")
    return shown.stdout.strip()


RUST = _rust()
PIP = [sys.executable, "-m", "pip", "index", "versions", "--retries", "0", "--index-url"]
OURS = tuple(sorted({sys.prefix, sys.base_prefix}))
CLIENTS = (
    Client(name="curl", command=lambda u, _: ["curl", "-sSf", u], installed=has("curl")),
    Client(
        name="curl on GnuTLS (pycurl)",
        command=lambda u, _: [str(PYTHON), "-c", PYCURL, u],
        installed=runs(str(PYTHON), "-c", "import pycurl"),
    ),
    Client(name="wget", command=lambda u, _: ["wget", "-qO-", u], installed=has("wget")),
    Client(
        name="git",
        command=lambda u, _: ["git", "ls-remote", f"{u}project.git"],
        installed=has("git"),
    ),
    Client(
        name="openssl s_client",
        command=lambda u, _: ["sh", "-c", _s_client(u)],
        installed=has("openssl"),
    ),
    Client(
        name="gnutls-cli",
        command=lambda u, _: ["sh", "-c", _gnutls(u)],
        installed=has("gnutls-cli"),
    ),
    Client(
        name="python ssl (system)",
        command=lambda u, _: [str(PYTHON), "-c", URLLIB, u],
        installed=PYTHON.exists,
    ),
    Client(
        name="python ssl",
        command=lambda u, _: [sys.executable, "-c", URLLIB, u],
        installed=lambda: True,
        files_alone=False,  # its OpenSSL may be built with another directory than the distribution's
        bind=OURS,
    ),
    Client(
        name="requests",
        command=lambda u, _: [sys.executable, "-c", REQUESTS, u],
        installed=runs(sys.executable, "-c", "import requests"),
        files_alone=False,  # brings certifi
        bind=OURS,
    ),
    Client(
        name="httpx",
        command=lambda u, _: [sys.executable, "-c", HTTPX, u],
        installed=runs(sys.executable, "-c", "import httpx"),
        files_alone=False,  # brings certifi
        bind=OURS,
    ),
    Client(
        name="aiohttp",
        command=lambda u, _: [sys.executable, "-c", AIOHTTP, u],
        installed=runs(sys.executable, "-c", "import aiohttp"),
        files_alone=False,
        bind=OURS,
    ),
    Client(
        name="pip",
        command=lambda u, _: [*PIP, f"{u}simple", PACKAGE],
        wants=f"{PACKAGE} (1.0.0)",
        installed=runs(sys.executable, "-m", "pip", "--version"),
        files_alone=False,
        bind=OURS,
    ),
    Client(
        name="node https", command=lambda u, _: ["node", "-e", NODE_HTTPS, u], installed=has("node"), files_alone=False
    ),
    Client(
        name="node fetch", command=lambda u, _: ["node", "-e", NODE_FETCH, u], installed=has("node"), files_alone=False
    ),
    Client(
        name="npm",
        command=lambda u, _: ["npm", "view", PACKAGE, "description", "--registry", u, "--no-update-notifier"],
        installed=has("npm"),
        files_alone=False,
        own=(("NPM_CONFIG_FETCH_RETRIES", "0"),),
    ),
    Client(
        name="java HttpClient",
        command=lambda u, d: ["java", source(d, "Fetch.java", JAVA), u],
        installed=has("java", "javac"),
    ),
    Client(name="ruby", command=lambda u, _: ["ruby", "-e", RUBY, u], installed=has("ruby")),
    Client(
        name="perl HTTP::Tiny",
        command=lambda u, _: ["perl", "-e", PERL, u],
        installed=runs("perl", "-MIO::Socket::SSL", "-e1"),
    ),
    Client(name="perl LWP", command=lambda u, _: ["perl", "-e", LWP, u], installed=runs("perl", "-MLWP", "-e1")),
    Client(name="php", command=lambda u, _: ["php", "-r", PHP, u], installed=has("php")),
    Client(
        name="go",
        command=lambda u, d: ["go", "run", source(d, "fetch.go", GO), u],
        installed=has("go"),
        own=(("GOCACHE", "/tmp/go"), ("GOFLAGS", "-mod=mod"), ("GOTOOLCHAIN", "local")),
    ),
    Client(
        name="chromium",
        command=lambda u, d: [*CHROMIUM, f"--user-data-dir={d}/profile", u],
        installed=Path(CHROMIUM[0]).exists,
    ),
    Client(
        name="cargo",
        command=lambda _, __: [f"{RUST}/bin/cargo", "search", PACKAGE, "--registry", "here"],
        installed=lambda: bool(RUST) and _reads_sparse_registries(f"{RUST}/bin/cargo"),
        files_alone=False,  # its curl is built in, and its OpenSSL looks nowhere
        bind=(RUST,) if RUST else (),
        own=(
            ("CARGO_REGISTRIES_HERE_INDEX", "sparse+{url}index/"),
            ("CARGO_HOME", "/tmp/cargo"),
            ("CARGO_NET_RETRY", "0"),
        ),
    ),
)


def _reads_sparse_registries(cargo: str) -> bool:
    """Older ones (Debian 12) fetch an index by git only: that client is git's own row."""
    if not os.access(cargo, os.X_OK):
        return False
    shown = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False, cwd="/").stdout
    found = re.match(r"cargo (\d+)\.(\d+)", shown)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 68)


def _endpoint(url: str) -> tuple[str, str]:
    host, port = url.removeprefix("https://").rstrip("/").split(":")
    return host, port


def _s_client(url: str) -> str:
    host, port = _endpoint(url)
    checks = f"-verify_return_error -verify_hostname {host} -servername {host} -x509_strict"
    return f"printf 'GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n' | openssl s_client -quiet {checks} -connect {host}:{port}"


def _gnutls(url: str) -> str:
    host, port = _endpoint(url)
    return f"printf 'GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n' | gnutls-cli --port {port} {host}"
