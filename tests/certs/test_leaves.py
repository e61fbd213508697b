"""The whole profile of a leaf, absences too."""

import ipaddress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.authority import CertificateAuthority
from certs.errors import UnusableNameError
from certs.profiles import BACKDATE, LEAF_LIFE
from tests.certs.chains import DAY, NOW, curve_key

LONGEST = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 57, "com"])  # 253 characters
NAMES = ["api.example.com", "a_b.pkg.example", "xn--bcher-kva.example", "localhost", "a" * 52 + ".example.com", LONGEST]
ADDRESSES = ["192.0.2.7", "2001:db8::1", "::1"]


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(tmp_path / "certs", NOW)


@pytest.mark.parametrize("name", NAMES + ADDRESSES)
def test_the_whole_profile(authority: CertificateAuthority, name: str) -> None:
    key = curve_key().public_key()
    leaf = authority.issue(name, key, NOW).certificate
    general = x509.IPAddress(ipaddress.ip_address(name)) if name in ADDRESSES else x509.DNSName(name)
    short = len(name) <= 64
    assert leaf.version is x509.Version.v3
    assert leaf.not_valid_before_utc == NOW - BACKDATE
    assert leaf.not_valid_after_utc == NOW + LEAF_LIFE
    assert leaf.signature_hash_algorithm is not None
    assert leaf.signature_hash_algorithm.name == "sha256"
    assert leaf.serial_number.bit_length() == 128
    assert leaf.issuer == authority.signer.subject
    assert leaf.subject == x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if short else [])
    assert {type(e.value): (e.critical, e.value) for e in leaf.extensions} == {
        x509.SubjectAlternativeName: (not short, x509.SubjectAlternativeName([general])),
        x509.BasicConstraints: (True, x509.BasicConstraints(ca=False, path_length=None)),
        x509.KeyUsage: (True, x509.KeyUsage(True, False, False, False, False, False, False, False, False)),
        x509.ExtendedKeyUsage: (False, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])),
        x509.SubjectKeyIdentifier: (False, x509.SubjectKeyIdentifier.from_public_key(key)),
        x509.AuthorityKeyIdentifier: (
            False,
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.signer.public_key()),  # type: ignore[arg-type]
        ),
    }
    leaf.verify_directly_issued_by(authority.signer)


def test_every_leaf_has_its_own_serial(authority: CertificateAuthority) -> None:
    key = curve_key().public_key()
    assert len({authority.issue("api.example.com", key, NOW).certificate.serial_number for _ in range(100)}) == 100


def test_a_leaf_never_outlives_its_issuer(authority: CertificateAuthority) -> None:
    end = authority.signer.not_valid_after_utc
    leaf = authority.issue("api.example.com", curve_key().public_key(), end - DAY)
    assert leaf.certificate.not_valid_after_utc == end


REFUSED = [
    "",
    ".",
    "*",
    "*.example.com",
    "api.example.com.",
    ".example.com",
    "a..b",
    "API.example.com",
    "bücher.example",
    "a b.example",
    "a\x00.example",
    "a\n.example",
    "-a.example",
    "a-.example",
    "a" * 64 + ".example",
    "a." + LONGEST,
    "127.1",
    "0177.0.0.1",
    "0x7f000001",
    "a.0x7f",
    "2130706433",
    "1.2.3.4.5",
    "a.123",
    "[::1]",
    "fe80::1%eth0",
    "2001:DB8::1",
    "2001:db8:0::1",
    "api.example.com:443",
    "a/b",
    "a@b.example",
    "\u0661.2.3.4",
    "a,b",
]


@pytest.mark.parametrize("name", REFUSED)
def test_no_leaf_for_what_is_not_one_normal_name(authority: CertificateAuthority, name: str) -> None:
    with pytest.raises(UnusableNameError) as refused:
        authority.issue(name, curve_key().public_key(), NOW)
    assert str(refused.value).isprintable()


def test_no_leaf_outside_the_authoritys_life(authority: CertificateAuthority) -> None:
    for moment in (NOW - BACKDATE - timedelta(seconds=1), authority.signer.not_valid_after_utc):
        with pytest.raises(Exception, match="the clock says"):
            authority.issue("api.example.com", curve_key().public_key(), moment)
