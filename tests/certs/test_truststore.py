"""The hand-written formats, against the programs and libraries that read them."""

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, pkcs12
from hypothesis import given
from hypothesis import strategies as st

from certs import der
from certs.roots import parse_pem, read_pem_file, system_bundle
from certs.truststore import hashed_names, java_trust_store, subject_hash
from tests.certs.chains import Profile, make, root


def openssl_hash(certificate: bytes) -> str:
    command = ["openssl", "x509", "-inform", "der", "-noout", "-subject_hash"]
    return subprocess.run(command, input=certificate, stdout=subprocess.PIPE, check=True).stdout.decode().strip()


def test_every_system_root_hashes_as_openssl_says() -> None:
    roots = parse_pem(read_pem_file(system_bundle()), "system")
    assert [subject_hash(certificate) for certificate in roots] == [openssl_hash(c) for c in roots]


UTF8, PRINTABLE, BMP, IA5, UNIVERSAL = 0x0C, 0x13, 0x1E, 0x16, 0x1C
NAME, COUNTRY, MAIL = "2.5.4.3", "2.5.4.6", "1.2.840.113549.1.9.1"
NAMES = [
    [[(NAME, UTF8, b"  Two   Spaces \t inside ")]],
    [[(NAME, UTF8, "ÄÖÜ straße".encode())], [(COUNTRY, PRINTABLE, b"DE")]],
    [[(NAME, BMP, "Wide Näme".encode("utf-16-be"))], [(MAIL, IA5, b"A@B.example")]],
    [[(NAME, UNIVERSAL, "Wider Name".encode("utf-32-be"))]],
    [[(NAME, UTF8, b"two in"), (COUNTRY, PRINTABLE, b"XX")], [(NAME, UTF8, b"one set")]],
    [[(NAME, 0x12, b" 12  34 ")]],  # NumericString is not folded
]


@pytest.mark.parametrize("parts", NAMES)
def test_odd_subjects_hash_as_openssl_says(parts: list[list[tuple[str, int, bytes]]]) -> None:
    subject = der.write(
        der.SEQUENCE,
        *(
            der.write(
                der.SET,
                *sorted(der.write(der.SEQUENCE, der.write_object(o), der.write(tag, text)) for o, tag, text in part),
            )
            for part in parts
        ),
    )
    body, *rest = der.read_all(der.read_one(root().certificate.public_bytes(Encoding.DER)).content)
    fields = [node.whole for node in der.read_all(body.content)]
    fields[5] = subject
    certificate = der.write(der.SEQUENCE, der.write(der.SEQUENCE, *fields), *(node.whole for node in rest))
    assert subject_hash(certificate) == openssl_hash(certificate)


def test_equal_subjects_are_counted() -> None:
    certificates = [root().certificate.public_bytes(Encoding.DER) for _ in range(3)]
    names = [name for name, _ in hashed_names(certificates)]
    assert len({name.split(".")[0] for name in names}) == 1
    assert [name.split(".")[1] for name in names] == ["0", "1", "2"]


def test_openssl_finds_the_issuer_in_the_directory(tmp_path: Path) -> None:
    issuers = [root() for _ in range(3)]
    leaf = make(Profile(), issuers[2])
    for name, certificate in hashed_names([i.certificate.public_bytes(Encoding.DER) for i in issuers]):
        (tmp_path / name).write_bytes(x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM))
    (tmp_path / "leaf").write_bytes(leaf.pem)
    command = ["openssl", "verify", "-no-CAfile", "-no-CAstore", "-CApath", str(tmp_path), str(tmp_path / "leaf")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("password", [None, b"", b"changeit", b"another"])
def test_the_java_store_is_pkcs12_that_opens_under_any_password(password: bytes | None, tmp_path: Path) -> None:
    certificates = [root().certificate for _ in range(3)]
    store = java_trust_store(certificate.public_bytes(Encoding.DER) for certificate in certificates)
    (tmp_path / "store").write_bytes(store)
    command = ["openssl", "pkcs12", "-nokeys", "-in", str(tmp_path / "store"), "-nomacver", "-passin"]
    shown = subprocess.run([*command, f"pass:{(password or b'').decode()}"], capture_output=True, check=True).stdout
    assert x509.load_pem_x509_certificates(shown) == certificates


def test_the_java_store_is_the_same_bytes_each_time() -> None:
    certificate = root().certificate.public_bytes(Encoding.DER)
    assert java_trust_store([certificate]) == java_trust_store([certificate])


def test_the_bags_are_those_of_the_library() -> None:
    """`cryptography` writes the same attributes (it adds an integrity code that we leave out)."""
    certificate = root().certificate
    theirs = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(certificate, b"root-0")],
        NoEncryption(),
    )
    ours = java_trust_store([certificate.public_bytes(Encoding.DER)])
    version, content = list(der.read_all(der.read_one(ours).content))
    assert [version.whole, content.whole] == [node.whole for node in der.read_all(der.read_one(theirs).content)][:2]


@given(st.binary(max_size=200))
def test_der_reads_or_refuses_whatever_comes(data: bytes) -> None:
    for read in (der.read_one, der.certificate_fields, lambda d: list(der.read_all(d))):
        try:
            read(data)
        except der.DerError:
            continue


@given(st.integers(0, 255).filter(lambda tag: tag & 0x1F != 0x1F), st.binary(max_size=70_000))
def test_der_reads_what_it_writes(tag: int, content: bytes) -> None:
    node = der.read_one(der.write(tag, content))
    assert (node.tag, node.content) == (tag, content)
