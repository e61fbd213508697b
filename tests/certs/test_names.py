"""Which hosts a certificate's names cover: the table, and OpenSSL's opinion beside it."""

import ssl
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from publicsuffixlist import PublicSuffixList

from certs.names import _FLAT, any_covers, is_registry_suffix
from certs.upstream import UpstreamTrust
from tests.certs.chains import Profile, handshake, make, root, server

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[1] / "cases" / "certificate_names.toml").read_text(encoding="utf-8")
)["case"]
each_case = pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
ROOT = root()


@each_case
def test_the_table(case: dict[str, Any]) -> None:
    alternatives = [("DNS", name) for name in case.get("dns", ())]
    alternatives += [("IP Address", address) for address in case.get("ip", ())]
    assert any_covers(alternatives, case["host"]) is case["covered"]


@each_case
def test_the_same_over_a_handshake(case: dict[str, Any]) -> None:
    # the common name says yes every time, and must not count
    names = (*case.get("dns", ()), *case.get("ip", ())) if case["what"] != "an address as a DNS name" else ()
    leaf = make(Profile(names=names, common_name=case["host"]), ROOT)
    client = UpstreamTrust(system=False, extra=[ROOT.pem]).context_for(case["host"])
    if case["covered"]:
        handshake(client, server(leaf), case["host"])
        return
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server(leaf), case["host"])


@pytest.mark.parametrize("case", [case for case in CASES if "openssl" in case], ids=lambda case: case["what"])
def test_where_we_and_openssl_differ(case: dict[str, Any]) -> None:
    """If this fails, OpenSSL learned better, and our own match may go."""
    plain = ssl.create_default_context(cadata=ROOT.pem.decode())
    plain.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it; only the name is the question here
    leaf = make(Profile(names=case["dns"]), ROOT)
    try:
        handshake(plain, server(leaf), case["host"])
        accepted = True
    except ssl.SSLCertVerificationError:
        accepted = False
    assert accepted is case["openssl"] is not case["covered"]


def test_no_registry_has_a_suffix_below_the_flat_ones() -> None:
    """The shortcut holds as long as the list says so."""
    whole = PublicSuffixList(only_icann=True)
    known = files("publicsuffixlist").joinpath("public_suffix_list.dat").read_text(encoding="utf-8")
    for line in known.splitlines():
        if line.rpartition(".")[2] in _FLAT and "." in line and not line.startswith("//"):
            assert not whole.is_public(line), line


@pytest.mark.parametrize(
    ("name", "registry"), [("com", True), ("co.uk", True), ("github.io", False), ("example.com", False)]
)
def test_registry_suffixes(name: str, registry: bool) -> None:
    assert is_registry_suffix(name) is registry
