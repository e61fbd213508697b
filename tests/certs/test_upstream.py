"""The upstream's verification, against every bad certificate of attack F21 and its like, over real handshakes."""

import datetime as dt
import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.alerts import Fault, classify_upstream
from certs.errors import TrustBundleError
from certs.upstream import PUBLIC_KEYS, ClientCertificate, UpstreamTrust, public_key_digest
from tests.certs.chains import DAY, NOW, PEM, Issuer, Profile, handshake, make, make_with_sha1, root, server

HOST = "api.example.com"
ROOT = root()
STRANGER = root()
RSA_1024 = rsa.generate_private_key(65537, 1024)
LIMITED = make(Profile(authority=True, common_name="limited", permitted="example.org"), ROOT)
NOT_AN_AUTHORITY = make(Profile(common_name="no authority"), ROOT)
SHORT = make(Profile(authority=True, common_name="expired link", end=NOW - dt.timedelta(hours=1)), ROOT)
WEAK = make(Profile(authority=True, common_name="weak link", key=RSA_1024), ROOT)


def trust(*roots: Issuer, **options: object) -> UpstreamTrust:
    return UpstreamTrust(system=False, extra=[issuer.pem for issuer in roots or (ROOT,)], **options)  # type: ignore[arg-type]


def refusal(served: ssl.SSLContext, host: str = HOST, **options: object) -> str:
    with pytest.raises(ssl.SSLError) as refused:
        handshake(trust(**options).context_for(host), served, host)
    failure = classify_upstream(refused.value, host)
    assert failure.fault is Fault.CERTIFICATE
    assert failure.text.startswith(f"the certificate of {host} was refused: ")
    return failure.text.removeprefix(f"the certificate of {host} was refused: ")


BAD: dict[str, tuple[Profile, Issuer | None, tuple[Issuer, ...], str]] = {
    "expired": (Profile(end=NOW - dt.timedelta(hours=1)), ROOT, (), "it has expired (10)"),
    "from the future": (Profile(start=NOW + DAY), ROOT, (), "it is not valid yet (9)"),
    "self-signed": (Profile(), None, (), "it is self-signed (18)"),
    "of a stranger": (Profile(), STRANGER, (), "its issuer is not trusted (20)"),
    "of a stranger, with his root": (Profile(), STRANGER, (STRANGER,), "ends in a root that is not trusted (19)"),
    "for another name": (Profile(names=["www.example.com"]), ROOT, (), "it is not for this name (62)"),
    "common name only": (Profile(names=[], common_name=HOST), ROOT, (), "it is not for this name (62)"),
    "for an address": (Profile(names=["192.0.2.7"], common_name=HOST), ROOT, (), "it is not for this name (62)"),
    "wildcard over com": (Profile(names=["*.com"]), ROOT, (), "it is not for this name (62)"),
    "for clients": (Profile(usage=ExtendedKeyUsageOID.CLIENT_AUTH), ROOT, (), "it is not for servers (26)"),
    "with RSA-1024": (Profile(key=RSA_1024), ROOT, (), "its key is too weak (66)"),
    "below RSA-1024": (Profile(), WEAK, (WEAK,), "an issuer's key is too weak (67)"),
    "outside the issuer's constraint": (Profile(), LIMITED, (LIMITED,), "may not certify that name (47)"),
    "of no authority": (Profile(), NOT_AN_AUTHORITY, (NOT_AN_AUTHORITY,), "not a certificate authority"),
    "of an expired link": (Profile(), SHORT, (SHORT,), "it has expired (10)"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_certificate_is_refused_and_the_reason_said(case: str) -> None:
    profile, issuer, chain, words = BAD[case]
    assert words in refusal(server(make(profile, issuer), *chain))


def test_sha_1_is_refused() -> None:
    assert "such as SHA-1 (68)" in refusal(server(make_with_sha1(Profile(), ROOT)))


def test_the_wrong_address_has_its_own_words() -> None:
    assert "not for this address (64)" in refusal(server(make(Profile(names=["192.0.2.8"]), ROOT)), "192.0.2.7")


def test_a_good_certificate_is_accepted() -> None:
    for key in (None, rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        leaf = make(Profile(key=key) if key else Profile(), ROOT)
        shaken = handshake(trust().context_for(HOST, ("http/1.1",)), server(leaf), HOST)
        assert shaken.client.version() == "TLSv1.3"


def test_over_an_intermediate_and_up_to_a_pinned_one() -> None:
    link = make(Profile(authority=True, common_name="link"), ROOT)
    leaf = make(Profile(), link)
    handshake(trust().context_for(HOST), server(leaf, link), HOST)
    handshake(trust(link).context_for(HOST), server(leaf), HOST)
    assert "issuer is not trusted" in refusal(server(leaf))


def test_the_servers_own_certificate_can_be_trusted() -> None:
    leaf = make(Profile())
    handshake(trust(leaf).context_for(HOST), server(leaf), HOST)


def test_a_rules_authority_counts_for_that_rule_only() -> None:
    both, served = trust(), server(make(Profile(), STRANGER))
    handshake(both.context_for(HOST, ca=STRANGER.pem), served, HOST)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(both.context_for(HOST), served, HOST)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(version: ssl.TLSVersion) -> None:
    served = server(make(Profile(), ROOT))
    served.minimum_version = served.maximum_version = version
    with pytest.raises(ssl.SSLError) as refused:
        handshake(trust().context_for(HOST), served, HOST)
    failure = classify_upstream(refused.value, HOST)
    assert (failure.fault, failure.text.split(": ")[1]) == (
        Fault.HANDSHAKE,
        "no common TLS version, at least 1.2 is needed",
    )


# --- keys that anyone can have ---


def test_the_built_in_public_key_is_the_scalar_four() -> None:
    key = ec.derive_private_key(4, ec.SECP384R1()).public_key()
    spki = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert hashlib.sha256(spki).digest() in PUBLIC_KEYS


def test_a_chain_through_the_public_emudhra_key_is_refused_whoever_issued_it() -> None:
    key = ec.derive_private_key(4, ec.SECP384R1())
    for issuer in (ROOT, None):
        link = make(Profile(authority=True, common_name="EM OV TLS CA - G3C", key=key), issuer)
        leaf = make(Profile(), link)
        roots = (ROOT, link) if issuer is None else (ROOT,)
        with pytest.raises(ssl.SSLCertVerificationError, match="publicly known"):
            handshake(trust(*roots).context_for(HOST), server(leaf, link), HOST)


@pytest.mark.parametrize("which", ["leaf", "link", "root"])
def test_a_blocked_key_anywhere_in_the_chain_is_refused(which: str) -> None:
    link = make(Profile(authority=True, common_name="link"), ROOT)
    leaf = make(Profile(), link)
    found = {"leaf": leaf, "link": link, "root": ROOT}[which].certificate
    blocked = frozenset({public_key_digest(found.public_bytes(serialization.Encoding.DER))})
    handshake(trust().context_for(HOST), server(leaf, link), HOST)
    assert "publicly known" in refusal(server(leaf, link), blocked=blocked)


def test_no_roots_of_the_system_are_blocked_by_mistake() -> None:
    UpstreamTrust().context_for(HOST)


# --- hostile certificates ---


def test_names_that_a_server_chose_are_cleaned_and_cut_in_the_message() -> None:
    names = ["evil\n\x1b[31m.example", "b" * 63 + ".example", "c.example", "d.example", "e.example"]
    words = refusal(server(make(Profile(names=names), ROOT)), "a_b.example.com")
    assert words.isprintable()
    assert words.isascii()
    assert words.startswith("it is not for this name but for evil??[31m.example, ")
    assert words.endswith(", c.example and 2 more")
    assert len(words) < 250


def test_a_huge_chain_is_refused_before_it_is_read() -> None:
    leaf = make(Profile(names=[f"host-{number}.example.com" for number in range(6000)]), ROOT)
    with pytest.raises(ssl.SSLError) as refused:
        handshake(trust().context_for(HOST), server(leaf), HOST)
    failure = classify_upstream(refused.value, HOST)
    assert failure.fault is Fault.HANDSHAKE
    assert failure.text.endswith("a message of the handshake is too large")


# --- it cannot be used wrongly ---


@pytest.mark.parametrize("host", [HOST, "a_b.example.com"])
def test_no_connection_without_a_name(host: str) -> None:
    context = trust().context_for(host)
    for name in (None, ""):
        with pytest.raises(ValueError, match="server_hostname"):
            context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)


def test_a_context_for_an_underscore_still_checks_every_name() -> None:
    context = trust().context_for("a_b.example.com")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not for this name but for www\.example\.com"):
        handshake(context, server(make(Profile(names=["www.example.com"]), ROOT)), HOST)


def test_over_a_socket_the_checks_are_the_same() -> None:
    leaf = make(Profile(names=["*.co.uk"]), ROOT)
    here, there = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), server(leaf).wrap_socket(there, server_side=True) as tls:
            tls.recv(1)  # until the client hangs up

    thread = threading.Thread(target=serve)
    thread.start()
    with here, pytest.raises(ssl.SSLCertVerificationError, match="not for this name but for"):
        trust().context_for("example.co.uk").wrap_socket(here, server_hostname="example.co.uk")
    thread.join(10)


def test_warming_makes_what_the_first_connection_uses() -> None:
    made = trust()
    made.warm((), ("http/1.1",))
    assert len(made._cache) == 2
    made.context_for(HOST)
    made.context_for(HOST, ("http/1.1",))
    assert len(made._cache) == 2


def test_contexts_are_cached_by_what_makes_them_differ() -> None:
    made = trust()
    assert made.context_for(HOST) is made.context_for("other.example")
    different = {
        id(made.context_for(HOST)),
        id(made.context_for(HOST, ("h2",))),
        id(made.context_for("a_b.example")),
        id(made.context_for(HOST, ca=STRANGER.pem)),
    }
    assert len(different) == 4


# --- client certificates ---


def client_files(directory: Path, key: ec.EllipticCurvePrivateKey | None = None) -> ClientCertificate:
    client = make(Profile(usage=ExtendedKeyUsageOID.CLIENT_AUTH, names=[]), ROOT)
    (directory / "client.pem").write_bytes(client.pem)
    private = (key or client.key).private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "client.key").write_bytes(private)
    return ClientCertificate(certificate=directory / "client.pem", key=directory / "client.key")


def asking() -> ssl.SSLContext:
    served = server(make(Profile(), ROOT))
    served.verify_mode = ssl.CERT_REQUIRED
    served.load_verify_locations(cadata=ROOT.pem.decode())
    return served


def test_a_rules_client_certificate_is_presented(tmp_path: Path) -> None:
    context = trust().context_for(HOST, client=client_files(tmp_path))
    assert handshake(context, asking(), HOST).server.getpeercert()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_without_one_the_failure_says_what_is_missing(version: ssl.TLSVersion) -> None:
    context = trust().context_for(HOST)
    context.maximum_version = version
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_client, to_server, server_hostname=HOST)
    theirs = asking().wrap_bio(to_server, to_client, server_side=True)
    said = []
    for _ in range(6):
        for step in (ours.do_handshake, theirs.do_handshake, lambda: ours.read(1)):
            try:
                step()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                said.append((step, error))
    ours_said = next(told for step, told in said if step != theirs.do_handshake)
    failure = classify_upstream(ours_said, HOST)
    if version is ssl.TLSVersion.TLSv1_3:
        assert failure.fault is Fault.CLIENT_CERTIFICATE
        assert failure.text == f"{HOST} asks for a client certificate"
        assert "rule" in failure.hint
    else:  # TLS 1.2 has no alert of its own for it
        assert failure.fault is Fault.HANDSHAKE


def test_a_client_certificate_that_does_not_load_is_refused_at_once(tmp_path: Path) -> None:
    wrong = client_files(tmp_path, key=ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(TrustBundleError, match="cannot be loaded"):
        trust().context_for(HOST, client=wrong)
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    wrong.key.write_bytes(locked)
    with pytest.raises(TrustBundleError, match="unencrypted"):
        trust().context_for(HOST, client=wrong)


# --- roots ---


def test_broken_roots_are_refused_when_they_are_read(tmp_path: Path) -> None:
    for text in (b"", b"no certificates", ROOT.pem[:200], ROOT.pem.replace(b"MII", b"AAA")):
        with pytest.raises(TrustBundleError):
            UpstreamTrust(system=False, extra=[text])
    with pytest.raises(TrustBundleError, match="missing trust bundle"):
        UpstreamTrust(bundles=[tmp_path / "none"])


def test_the_environment_does_not_choose_the_roots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "evil.pem").write_bytes(STRANGER.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "evil.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    context = UpstreamTrust().context_for(HOST)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, server(make(Profile(), STRANGER)), HOST)
    assert len(context.get_ca_certs()) > 1
