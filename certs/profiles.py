"""The three certificate profiles: the authority's root, the bridge to its successor, the leaf. No I/O, no clock.

Everything that RFC 5280 and the strict verifiers (OpenSSL 3.6, BoringSSL, Go, Java) ask for, and nothing else: no
revocation or issuer addresses (there is nobody to ask), no policies, no client use. Name constraints are left out: the
names are the policy's to decide, and a certificate cannot change when the policy does.
"""

import secrets
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.names import LeafName

BACKDATE = timedelta(days=2)  # clients whose clock is a day behind still accept it
ROOT_LIFE = timedelta(days=730)
LEAF_LIFE = timedelta(days=7)
PATH_LENGTH = 4  # bridges that may stand between a root and a leaf: rotations within one overlap
_LONGEST_COMMON_NAME = 64  # ub-common-name, RFC 5280 appendix A


def build_root(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """A self-signed authority. Its subject holds a part of its key's digest, so that two never share a name."""
    public = key.public_key()
    digest = x509.SubjectKeyIdentifier.from_public_key(public).digest.hex()
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Wicketgate"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Wicketgate inspection CA {digest[:12]}"),
        ]
    )
    builder = _authority(subject=name, issuer=name, public=public, issuer_public=public, path_length=PATH_LENGTH)
    return _dated(builder, now, now + ROOT_LIFE).sign(key, hashes.SHA256())


def build_bridge(
    successor: x509.Certificate,
    *,
    issuer: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    """The successor's name and key, signed by the signer that it replaces.

    A sandbox that was started before the rotation trusts only the old root; over the bridge it accepts new leaves too.
    """
    builder = _authority(
        subject=successor.subject,
        issuer=issuer.subject,
        public=_curve_key(successor),
        issuer_public=key.public_key(),
        path_length=PATH_LENGTH - 1,
    )
    return _dated(builder, now, until).sign(key, hashes.SHA256())


def build_leaf(
    name: LeafName,
    public: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    """A server certificate for exactly one name, valid from two days ago for a week at most."""
    subject_name = str(name)
    fits = len(subject_name) <= _LONGEST_COMMON_NAME
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject_name)] if fits else [])
    usage = x509.KeyUsage(digital_signature=True, **_unset("digital_signature"))
    # with an empty subject the alternative name must be critical (RFC 5280 §4.2.1.6)
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer.subject, public_key=public)
        .add_extension(x509.SubjectAlternativeName([_general(name)]), critical=not fits)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return _dated(builder, now, min(now + LEAF_LIFE, issuer.not_valid_after_utc)).sign(key, hashes.SHA256())


def _authority(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer_public: ec.EllipticCurvePublicKey,
    path_length: int,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **_unset("key_cert_sign", "crl_sign"))
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
        # on an authority this limits what verifiers accept below it: no code signing, no mail
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )


def _dated(builder: x509.CertificateBuilder, now: datetime, until: datetime) -> x509.CertificateBuilder:
    now, until = now.replace(microsecond=0), until.replace(microsecond=0)
    serial = secrets.randbits(127) | 1 << 127  # always 128 bits; never guessable
    return builder.serial_number(serial).not_valid_before(now - BACKDATE).not_valid_after(until)


_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _unset(*but: str) -> dict[str, bool]:
    return {usage: False for usage in _USAGES if usage not in but}


def _general(name: LeafName) -> x509.GeneralName:
    return x509.IPAddress(name) if isinstance(name, IPv4Address | IPv6Address) else x509.DNSName(name)


def _curve_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    public = certificate.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    return public
