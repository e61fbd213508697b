"""Certificate chains of every bad kind, and a TLS handshake in memory, for the tests of this package."""

import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs import der

type Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PEM = serialization.Encoding.PEM
NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
DAY = dt.timedelta(days=1)


def curve_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """A throw-away authority."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a certificate is made of; the defaults are a good leaf."""

    names: Sequence[str] = ("api.example.com",)
    common_name: str = "leaf"
    key: Key = field(default_factory=curve_key)
    start: dt.datetime = NOW - DAY
    end: dt.datetime = NOW + 30 * DAY
    authority: bool = False
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH
    permitted: str | None = None


def make(profile: Profile, issuer: Issuer | None = None) -> Issuer:
    """Sign a certificate; self-signed without an issuer."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, profile.common_name)])
    key = issuer.key if issuer else profile.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.certificate.subject if issuer else name)
        .public_key(profile.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(profile.start)
        .not_valid_after(profile.end)
        .add_extension(x509.BasicConstraints(ca=profile.authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(profile.key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if not profile.authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage([profile.usage]), critical=False)
        if profile.names:
            builder = builder.add_extension(x509.SubjectAlternativeName([general(n) for n in profile.names]), False)
    if profile.permitted:
        names = x509.NameConstraints([x509.DNSName(profile.permitted)], None)
        builder = builder.add_extension(names, critical=True)
    return Issuer(certificate=builder.sign(key, hashes.SHA256()), key=profile.key)


def make_with_sha1(profile: Profile, issuer: Issuer) -> Issuer:
    """A leaf signed with ECDSA and SHA-1, which the library no longer makes: rebuilt and signed by hand."""
    good = make(profile, issuer).certificate
    assert isinstance(issuer.key, ec.EllipticCurvePrivateKey)
    algorithm = der.write(der.SEQUENCE, der.write_object("1.2.840.10045.4.1"))
    version, serial, _, *rest = der.read_all(der.read_one(good.tbs_certificate_bytes).content)
    body = der.write(der.SEQUENCE, version.whole, serial.whole, algorithm, *(node.whole for node in rest))
    signature = der.write(der.BIT_STRING, b"\0", issuer.key.sign(body, ec.ECDSA(hashes.SHA1())))
    whole = der.write(der.SEQUENCE, body, algorithm, signature)
    return Issuer(certificate=x509.load_der_x509_certificate(whole), key=profile.key)


def general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def root(**changes: object) -> Issuer:
    return make(Profile(authority=True, common_name="Throw-away root", **changes))  # type: ignore[arg-type]


def server(leaf: Issuer, *chain: Issuer) -> ssl.SSLContext:
    """A server that presents the leaf, however bad: OpenSSL's own objections are off on this side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    key = leaf.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = os.memfd_create("server")
    try:
        os.write(file, leaf.pem + b"".join(link.pem for link in chain) + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


@dataclass(frozen=True)
class Shaken:
    client: ssl.SSLObject
    server: ssl.SSLObject


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str | None) -> Shaken:
    """Both sides of a handshake in memory. What the client raises is raised, after the server has read its alert."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
        if len(done) == 2:
            return Shaken(ours, theirs)
    raise AssertionError("the handshake does not end")


def server_error(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLError:
    """What the server sees of a client that does not accept it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if side is theirs:
                    return error
    raise AssertionError("the server saw no error")
