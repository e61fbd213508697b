"""The trust matrix through the whole product: each real client inside a sandbox, against an origin that is inspected.

`docs/reference/clients.md` has its table; the test holds the rows of what is installed here against it
(WICKETGATE_WRITE_DOCS=1 writes them).
"""

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.gate import LOCAL, Ran, run
from tests.live.test_trust_kit import Handler, Server
from tests.live.trust_clients import CLIENTS, Client
from tests.origins.certificates import make_certificates
from tests.origins.serving import server_context
from tests.tree import ROOT

pytestmark = pytest.mark.live
HOST = "origin.example"
DOCUMENT = ROOT / "docs" / "reference" / "clients.md"
BEGIN, END = "<!-- the matrix, written by tests/live/test_trust_matrix.py -->\n", "<!-- end -->\n"
NOT_COPIED = shutil.ignore_patterns(
    "test", "tests", "idlelib", "__pycache__", "config-*", "*.a", "site-packages", "tkinter"
)
INSTALLED = [client for client in CLIENTS if client.installed()]
MATRIX: dict[str, tuple[str, str]] = {}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An origin, and a workspace with an interpreter of this environment in it: a sandbox sees no home directory."""

    port: int
    directory: Path
    workspace: Path
    interpreter: Path

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}/"

    @property
    def options(self) -> list[str]:
        words = ["--allow", f"{HOST}:{self.port}", "--resolve", f"{HOST}:{self.port}:127.0.0.1"]
        return [*LOCAL, *words, "--cacert", str(self.directory / "ca.pem"), "--workspace", str(self.workspace)]

    def run(self, *command: str) -> Ran:
        return run(*command, options=self.options)

    def command(self, client: Client, *, variables: bool) -> list[str]:
        scratch = self.workspace / re.sub(r"[^a-z0-9]+", "-", client.name.lower())
        scratch.mkdir(exist_ok=True)
        scratch.chmod(0o777)
        # The bare TLS clients of the matrix say any Host; under inspection it must be the one that was asked for.
        words = [word.replace("Host: x", f"Host: {HOST}:{self.port}") for word in client.command(self.url, scratch)]
        if client.name == "cargo":  # may be below a home directory, which no sandbox sees
            words[0] = str(shutil.copy2(words[0], str(scratch)))
        settings = [f"{name}={value.format(url=self.url)}" for name, value in client.own]
        if words[0] == sys.executable:
            words[0] = str(self.interpreter)
            settings.append(f"PYTHONPATH={self.workspace / 'packages'}")
            settings.append(f"LD_LIBRARY_PATH={self.workspace / 'lib'}")
        if not variables:
            settings = ["-i", "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/sandbox", *settings]
        return ["env", *settings, *words]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    directory = tmp_path_factory.mktemp("matrix")
    make_certificates(directory, (HOST,))
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = server_context(directory).wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    workspace = tmp_path_factory.mktemp("work")
    workspace.chmod(0o777)
    yield Setting(
        port=server.server_address[1],
        directory=directory,
        workspace=workspace,
        interpreter=_interpreter(workspace),
    )
    server.shutdown()
    server.server_close()
    thread.join()


def _interpreter(workspace: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home, packages = Path(sys.base_prefix), Path(next(path for path in sys.path if path.endswith("site-packages")))
    shutil.copytree(home / "lib" / version, workspace / "lib" / version, ignore=NOT_COPIED, symlinks=True)
    for library in (home / "lib").glob("libpython*"):
        shutil.copy2(library, workspace / "lib", follow_symlinks=False)
    (workspace / "bin").mkdir()
    shutil.copy2(home / "bin" / version, workspace / "bin" / version)
    wanted = {"mypy", "mypyc", "grpc", "ruff", "hypothesis"}
    skip = shutil.ignore_patterns("__pycache__", "tests", *wanted)
    shutil.copytree(packages, workspace / "packages", ignore=skip, symlinks=True)
    return workspace / "bin" / version


@pytest.mark.parametrize("client", INSTALLED, ids=lambda client: client.name)
def test_the_client_is_inspected_and_does_not_mind(setting: Setting, client: Client) -> None:
    ran = setting.run(*setting.command(client, variables=True))
    bare = setting.run(*setting.command(client, variables=False))
    MATRIX[client.name] = ("yes" if client.wants in ran.out else "NO", "yes" if client.wants in bare.out else "no")
    assert client.wants in ran.out, ran.err or ran.out
    assert client.wants in bare.out or not client.files_alone, bare.err or bare.out
    requests = ran.decisions(verdict="allow", plane="inspect")
    assert requests, "not inspected"
    assert all(one["path"].startswith("/") and one["method"] == "GET" for one in requests)


REJECTING = {
    "curl with roots of its own": "env -i curl -sS --capath /proc --cacert {other} {url}",
    "openssl with roots of its own": (
        "env -i openssl s_client -verify_return_error -no-CApath -no-CAstore -CAfile {other}"
        " -connect {host}:{port} -servername {host} </dev/null"
    ),
    "python with no roots": (
        "env -i /usr/bin/python3 -c 'import ssl, socket; c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT);"
        ' c.wrap_socket(socket.create_connection(("{host}", {port})), server_hostname="{host}")\''
    ),
    "node without the variable": "env -u NODE_EXTRA_CA_CERTS node -e 'fetch(\"{url}\").catch(e => process.exit(60))'",
}


@pytest.mark.parametrize("name", REJECTING)
def test_a_client_with_roots_of_its_own_is_recognised(setting: Setting, name: str) -> None:
    if name.startswith("node") and shutil.which("node") is None:
        pytest.skip("node is not installed")
    other = setting.workspace / "other.pem"
    if not other.exists():
        (setting.directory / "other").mkdir()
        make_certificates(setting.directory / "other", ("other.example",))
        shutil.copy(setting.directory / "other" / "ca.pem", other)
    script = REJECTING[name].format(other=other, url=setting.url, host=HOST, port=setting.port)
    ran = setting.run("sh", "-c", script)
    assert ran.code != 0
    (record,) = [one for one in ran.records if one.get("reason") == "client_rejected_ca"]
    assert (record["verdict"], record["authority"]) == ("failure", f"{HOST}:{setting.port}")
    assert "SSL_CERT_FILE" in record["detail"]
    assert "splice" in record["detail"]


@pytest.mark.skipif(shutil.which("certutil") is None, reason="NSS's tools are not installed")
def test_browsers_find_the_authority_in_their_own_database(setting: Setting) -> None:
    script = (
        'certutil -L -d sql:$HOME/.pki/nssdb && certutil -N -d sql:$HOME/.pki/nssdb --empty-password && echo "$HOME"'
    )
    ran = setting.run("sh", "-c", script)
    assert ran.out.endswith("/home/sandbox\n"), ran.err  # writable, as browsers want it
    assert re.search(r"^Wicketgate 0 +C,,", ran.out, re.MULTILINE)


def test_the_matrix_is_the_documented_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCUMENT.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    known = {row.split("|")[1].strip(): row for row in old.splitlines() if row.startswith("| ")}
    known.pop("client", None)
    rows = {name: f"| {name} | {marks[0]} | {marks[1]} |" for name, marks in MATRIX.items()}
    table = "\n".join(["", "| client | inspected | without any variable |", "|---|---|---|", *(known | rows).values()])
    with capsys.disabled():
        print(table)
    if os.environ.get("WICKETGATE_WRITE_DOCS") == "1":
        DOCUMENT.write_text(f"{head}{BEGIN}{table}\n\n{END}{tail}", "utf-8")
        return
    assert {name: row for name, row in rows.items() if known.get(name) != row} == {}
    assert set(MATRIX) >= {"curl", "git", "openssl s_client", "python ssl"} or len(MATRIX) < len(INSTALLED)
