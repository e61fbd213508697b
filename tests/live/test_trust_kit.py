"""Real clients under the trust kit alone: the matrix of which accept a leaf of ours, and by what.

Each client runs in a mount namespace that has the distribution's programs, the kit's files and nothing of the host's
trust. Three times: with the kit; with its files but none of its variables (`env -i`, hard-wired paths); and with the
kit of another authority, which must fail, so that no success can come from anywhere else.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from certs.authority import CertificateAuthority
from certs.contexts import LeafCache
from certs.kit import Kit, prepare_kit
from certs.upstream import UpstreamTrust
from tests.certs.chains import curve_key, handshake
from tests.live.trust_clients import ANSWER, CLIENTS, PACKAGE, Client

pytestmark = pytest.mark.live
HOST = "origin.example"
END = b"-----END CERTIFICATE-----\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NPM = {
    "name": PACKAGE,
    "description": ANSWER,
    "dist-tags": {"latest": "1.0.0"},
    "versions": {"1.0.0": {"name": PACKAGE, "version": "1.0.0", "description": ANSWER, "dist": {"tarball": "x"}}},
}
CRATES = {"crates": [{"name": PACKAGE, "description": ANSWER, "max_version": "1.0.0"}], "meta": {"total": 1}}
# Enough of each protocol for one question; the word stands nowhere else, neither in a request nor in a refusal.
ANSWERS = {
    "/": ANSWER,
    "/project.git/info/refs": f"{COMMIT}\trefs/heads/{ANSWER}\n",
    f"/simple/{PACKAGE}/": f'<a href="{PACKAGE}-1.0.0.tar.gz">{PACKAGE}-1.0.0.tar.gz</a>',
    f"/{PACKAGE}": json.dumps(NPM),
    "/api/v1/crates": json.dumps(CRATES),
}
INSTALLED = [client for client in CLIENTS if client.installed()]
MATRIX: dict[str, dict[str, bool]] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        body = ANSWERS.get(path)
        if path == "/index/config.json":
            address = f"https://{self.headers['Host']}"
            body = json.dumps({"dl": address, "api": address})
        if query.startswith("service="):
            body = ANSWERS["/project.git/info/refs"]  # git falls back to the plain protocol
        kind = {"/": "text/plain", f"/simple/{PACKAGE}/": "text/html"}.get(path, "application/json")
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", "text/plain" if "refs" in path else kind)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass  # clients that refuse the certificate are part of the test


@dataclass(kw_only=True)
class Setting:
    url: str
    kit: Kit
    stranger: Kit
    workspace: Path
    hosts: Path = field(init=False)

    def __post_init__(self) -> None:
        self.hosts = self.workspace / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost {HOST}\n")

    def run(self, client: Client, kit: Kit, *, variables: bool) -> subprocess.CompletedProcess[str]:
        scratch = self.workspace / client.name.replace(" ", "-").replace(":", "")
        scratch.mkdir(exist_ok=True)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8"}
        environment |= {name: value.format(url=self.url) for name, value in client.own}
        environment |= kit.environment if variables else {}
        command = [*self.namespace(client, kit, scratch), "--", *client.command(self.url, scratch)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=40, check=False, stdin=subprocess.DEVNULL
        )

    def namespace(self, client: Client, kit: Kit, scratch: Path) -> list[str]:
        bwrap = shutil.which("bwrap")
        assert bwrap, "bubblewrap is not installed"
        words = [bwrap, "--unshare-user", "--unshare-pid", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for top in ("/bin", "/sbin", "/lib", "/lib64", "/lib32"):
            if os.path.islink(top):
                words += ["--symlink", os.readlink(top), top]
        shown = ["/usr", "/etc/alternatives", *client.bind]
        shown += [str(path) for path in Path("/etc").glob("java-*")]  # Debian keeps the JDK's own settings there
        for path in shown:
            words += ["--ro-bind-try", path, path]
        for source, destination in kit.mounts:
            words += ["--ro-bind", str(source), str(destination)]
        for source, name in kit.home:  # a copy: browsers write beside it
            (scratch / name.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(source, scratch / name)
        words += ["--bind-try", str(scratch / ".pki"), "/tmp/.pki"]
        words += ["--ro-bind", str(self.hosts), "/etc/hosts", "--bind", str(scratch), str(scratch)]
        return [*words, "--chdir", "/tmp"]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    directory, now = tmp_path_factory.mktemp("trust"), datetime.now(UTC)
    authority = CertificateAuthority.load_or_create(directory / "certs", now)
    authority.rotate(now - timedelta(days=1))  # so that chains with a bridge are what clients get
    stranger = CertificateAuthority.load_or_create(directory / "stranger", now)
    server = Server(("127.0.0.1", 0), Handler)
    context = LeafCache(authority).context_for(HOST, ("http/1.1",))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Setting(
        url=f"https://{HOST}:{server.server_address[1]}/",
        kit=prepare_kit(directory / "kits", ca_pem=authority.pem(now), now=now),
        stranger=prepare_kit(directory / "kits", ca_pem=stranger.pem(now), now=now),
        workspace=directory,
    )
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("client", INSTALLED, ids=lambda client: client.name)
def test_the_client_trusts_the_kit_and_nothing_else(setting: Setting, client: Client) -> None:
    with_kit = setting.run(client, setting.kit, variables=True)
    files_only = setting.run(client, setting.kit, variables=False)
    other = setting.run(client, setting.stranger, variables=True)
    good = {
        name: client.wants in run.stdout for name, run in (("kit", with_kit), ("files", files_only), ("other", other))
    }
    MATRIX[client.name] = good
    assert good["kit"], with_kit.stderr or with_kit.stdout
    assert not good["other"], "the client verifies nothing, or trusts something else"
    assert good["files"] or not client.files_alone, files_only.stderr or files_only.stdout


if shutil.which("certutil"):  # NSS's own judge of the database that browsers read

    @pytest.mark.parametrize("known", [True, False])
    def test_nss_trusts_a_leaf_by_the_database_in_the_home(setting: Setting, tmp_path: Path, known: bool) -> None:
        for source, name in (setting.kit if known else setting.stranger).home:
            shutil.copy(source, tmp_path / name.name)
        now = datetime.now(UTC)
        authority = CertificateAuthority.load_or_create(setting.workspace / "certs", now)
        leaf = authority.issue(HOST, curve_key().public_key(), now)
        (tmp_path / "leaf.pem").write_bytes(leaf.chain.split(b"-----END CERTIFICATE-----")[0] + END)
        database = ["-d", f"sql:{tmp_path}", "-n", "leaf"]
        add = ["certutil", "-A", *database, "-t", ",,", "-i", str(tmp_path / "leaf.pem"), "--empty-password"]
        subprocess.run(add, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        judge = ["certutil", "-V", "-e", "-u", "V", *database]
        judged = subprocess.run(judge, capture_output=True, text=True, check=False)
        assert ("certificate is valid" in judged.stdout) is known, judged.stderr


def test_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    """Print it, for people and for the docs. Nothing to judge that was not judged above."""
    with capsys.disabled():
        absent = {client: "not run" if client in INSTALLED else "not installed" for client in CLIENTS}
        print("\n\n| client | the kit | its files alone |\n|---|---|---|")
        for client in CLIENTS:
            row = MATRIX.get(client.name)
            marks = ("yes" if row["kit"] else "NO", "yes" if row["files"] else "no") if row else (absent[client],) * 2
            print(f"| {client.name} | {marks[0]} | {marks[1]} |")
    assert {client.name for client in INSTALLED} >= {"curl", "git", "openssl s_client", "python ssl"}


def test_the_upstream_verifier_accepts_what_the_kit_accepts(setting: Setting, tmp_path: Path) -> None:
    """The bundle works for our own verifier too: a broker behind a broker."""
    now = datetime.now(UTC)
    authority = CertificateAuthority.load_or_create(setting.workspace / "certs", now)
    bundle = setting.kit.directory / "etc/ssl/certs/ca-certificates.crt"
    client = UpstreamTrust(bundles=[bundle]).context_for(HOST)
    handshake(client, LeafCache(authority).context_for(HOST), HOST)
