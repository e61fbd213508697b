"""Makes a throw-away certificate authority and one leaf for the origins of tests, demo and bench.

P-256 with SHA-256, one week long. Its files never leave the directory given: `ca.pem`, `leaf.pem` (leaf, then
authority) and `leaf.key`. It must not be used for anything that outlives a test run.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = dt.timedelta(days=7)
BACKDATE = dt.timedelta(hours=1)


def make_certificates(directory: Path, names: Sequence[str]) -> None:
    """Write the three files. A name that is an IP address becomes an iPAddress entry, any other a dNSName entry."""
    now = dt.datetime.now(dt.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = make_authority(authority_key, now)
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    leaf = _leaf(leaf_key, names, authority, authority_key, now)
    pem = serialization.Encoding.PEM
    (directory / "ca.pem").write_bytes(authority.public_bytes(pem))
    (directory / "leaf.pem").write_bytes(leaf.public_bytes(pem) + authority.public_bytes(pem))
    key_file = directory / "leaf.key"
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        leaf_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def make_authority(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    """An authority for leaves alone."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Throw-away test authority")])
    # Without this one Python's strict verification (the default since 3.13) trusts nothing that the authority signed.
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test origin")])
    return (
        _builder(subject, authority.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        # Python's strict verification (the default since 3.13) refuses a leaf without this one.
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
