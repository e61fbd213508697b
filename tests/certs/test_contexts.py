"""The contexts that the sandbox's clients meet, and the cache of them."""

import os
import ssl
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from certs.authority import CertificateAuthority
from certs.contexts import LeafCache
from certs.profiles import LEAF_LIFE
from tests.certs.chains import DAY, NOW, Shaken, handshake

NAME = "api.example.com"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(tmp_path / "certs", NOW)


def client(authority: CertificateAuthority, *alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem(NOW).decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


def presented(shaken: Shaken) -> x509.Certificate:
    der = shaken.client.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


@pytest.mark.parametrize("name", [NAME, "a_b.pkg.example", "192.0.2.7", "2001:db8::1", "a" * 63 + "." + "b" * 63])
def test_a_strict_client_accepts_the_leaf(authority: CertificateAuthority, name: str) -> None:
    shaken = handshake(client(authority), LeafCache(authority).context_for(name), name)
    assert shaken.client.version() == "TLSv1.3"
    assert presented(shaken).issuer == authority.signer.subject


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(("h2", "http/1.1"), "http/1.1"), (("h2",), "h2"), (("http/1.1",), "http/1.1"), (("acme",), None), ((), None)],
)
def test_the_servers_order_chooses_the_protocol(
    authority: CertificateAuthority, offered: tuple[str, ...], chosen: str | None
) -> None:
    served = LeafCache(authority).context_for(NAME, ("http/1.1", "h2"))
    assert handshake(client(authority, *offered), served, NAME).client.selected_alpn_protocol() == chosen


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(authority: CertificateAuthority, version: ssl.TLSVersion) -> None:
    old = client(authority)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        handshake(old, LeafCache(authority).context_for(NAME), NAME)


@pytest.mark.parametrize("suite", ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "ECDHE-ECDSA-AES128-CCM"])
def test_old_suites_are_refused(authority: CertificateAuthority, suite: str) -> None:
    old = client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers(suite)
    with pytest.raises(ssl.SSLError):
        handshake(old, LeafCache(authority).context_for(NAME), NAME)


def test_tls_1_2_gets_an_aead_and_forward_secrecy(authority: CertificateAuthority) -> None:
    older = client(authority)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    shaken = handshake(older, LeafCache(authority).context_for(NAME), NAME)
    cipher = shaken.client.cipher()
    assert cipher is not None
    assert cipher[0].startswith("ECDHE-ECDSA-")
    assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]
    assert shaken.client.session is not None
    assert not shaken.client.session.has_ticket
    assert shaken.client.compression() is None


def test_no_tickets_in_tls_1_3(authority: CertificateAuthority) -> None:
    shaken = handshake(client(authority), LeafCache(authority).context_for(NAME), NAME)
    shaken.server.write(b"x")
    assert shaken.client.read(1) == b"x"  # a ticket would have come before
    assert shaken.client.session is None or not shaken.client.session.has_ticket


def test_the_switches_that_a_handshake_does_not_show(authority: CertificateAuthority) -> None:
    context = LeafCache(authority).context_for(NAME)
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_TICKET):
        assert option in context.options
    assert context.num_tickets == 0
    assert context.verify_mode is ssl.CERT_NONE


def test_one_name_is_one_context_and_leaf(authority: CertificateAuthority) -> None:
    cache = LeafCache(authority)
    first = cache.context_for(NAME, ("h2",))
    assert cache.context_for(NAME, ("h2",)) is first
    assert cache.context_for(NAME, ("http/1.1",)) is not first
    other = cache.context_for("b.example.com", ("h2",))
    assert other is not first
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client(authority), other, NAME)


def test_the_cache_is_bounded_and_keeps_the_recently_used(authority: CertificateAuthority) -> None:
    cache = LeafCache(authority, limit=3)
    kept = cache.context_for("kept.example")
    for number in range(10):
        cache.context_for(f"h{number}.example")
        assert cache.context_for("kept.example") is kept
        assert len(cache) <= 3


def test_a_refused_name_leaves_nothing_in_the_cache(authority: CertificateAuthority) -> None:
    cache = LeafCache(authority)
    with pytest.raises(Exception, match="not a host name"):
        cache.context_for("*.example.com")
    assert len(cache) == 0


def test_a_new_signer_empties_the_cache(authority: CertificateAuthority) -> None:
    cache = LeafCache(authority)
    before = cache.context_for(NAME)
    cache.context_for("b.example.com")
    authority.rotate(NOW)
    after = cache.context_for(NAME)
    assert after is not before
    assert len(cache) == 1
    assert presented(handshake(client(authority), after, NAME)).issuer == authority.signer.subject


def test_a_leaf_is_made_anew_before_it_expires_and_when_the_clock_went_back(authority: CertificateAuthority) -> None:
    clock = Clock()
    cache = LeafCache(authority, clock=clock)
    first = cache.context_for(NAME)
    clock.now = NOW + LEAF_LIFE - DAY - timedelta(seconds=1)
    assert cache.context_for(NAME) is first
    clock.now = NOW + LEAF_LIFE - DAY
    second = cache.context_for(NAME)
    assert second is not first
    clock.now = NOW
    assert cache.context_for(NAME) is not second  # not valid yet


def test_remembered_tls_1_2_sessions_cannot_fill_memory(authority: CertificateAuthority) -> None:
    cache = LeafCache(authority)
    older = client(authority)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    most = 0
    for _ in range(300):
        served = cache.context_for(NAME)
        handshake(older, served, NAME)
        most = max(most, served.session_stats()["number"])
    assert most <= 256


def test_the_leaf_key_touches_no_file_and_no_descriptor_stays(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    cache = LeafCache(authority)
    cache.context_for(NAME)
    before, files = os.listdir("/proc/self/fd"), sorted(tmp_path.rglob("*"))
    for number in range(20):
        cache.context_for(f"h{number}.example")
    assert os.listdir("/proc/self/fd") == before
    assert sorted(tmp_path.rglob("*")) == files


def test_a_group_asked_for_is_the_only_one(authority: CertificateAuthority) -> None:
    """A client that offered X25519 beside others gets it; one that cannot do it is never given such a context."""
    cache = LeafCache(authority)
    served = cache.context_for(NAME, ("http/1.1",), "X25519")
    assert served is cache.context_for(NAME, ("http/1.1",), "X25519")
    assert served is not cache.context_for(NAME, ("http/1.1",))
    assert handshake(client(authority), served, NAME).client.version() == "TLSv1.3"
    older = client(authority)
    older.set_ecdh_curve("prime256v1")
    assert handshake(older, cache.context_for(NAME, ("http/1.1",)), NAME).client.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        handshake(older, served, NAME)
