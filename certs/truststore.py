"""Formats of the same roots for clients that read no PEM bundle: OpenSSL's hashed directory, Java's PKCS#12. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from certs.der import (
    BMP_STRING,
    INTEGER,
    OCTET_STRING,
    SEQUENCE,
    SET,
    UTF8_STRING,
    Node,
    certificate_fields,
    read_all,
    read_one,
    write,
    write_object,
)

_EXPLICIT = 0xA0  # [0]
_DATA = write_object("1.2.840.113549.1.7.1")
_CERTIFICATE_BAG = write_object("1.2.840.113549.1.12.10.1.3")
_X509_CERTIFICATE = write_object("1.2.840.113549.1.9.22.1")
_FRIENDLY_NAME = write_object("1.2.840.113549.1.9.20")
# Without this attribute Java reads the certificate and does not trust it.
_TRUSTED_FOR = write_object("2.16.840.1.113894.746875.1.1")
_ANY_USAGE = write_object("2.5.29.37.0")

# The string types that OpenSSL folds before it hashes a name; how each is decoded.
_FOLDED = {
    UTF8_STRING: "utf-8",
    0x13: "latin-1",  # PrintableString
    0x14: "latin-1",  # TeletexString
    0x16: "latin-1",  # IA5String
    0x1A: "latin-1",  # VisibleString
    0x1C: "utf-32-be",  # UniversalString
    BMP_STRING: "utf-16-be",
}


def hashed_names(certificates: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """File name and certificate (DER) for a directory that OpenSSL looks up by subject: `5ed36f99.0` and so on."""
    seen: Counter[str] = Counter()
    for certificate in certificates:
        digest = subject_hash(certificate)
        yield f"{digest}.{seen[digest]}", certificate
        seen[digest] += 1


def subject_hash(certificate: bytes) -> str:
    """What `openssl x509 -subject_hash` prints: a digest of the subject's folded form, eight hex digits."""
    subject, _ = certificate_fields(certificate)
    folded = b"".join(_fold_set(relative) for relative in read_all(subject.content))
    return hashlib.sha1(folded, usedforsecurity=False).digest()[3::-1].hex()


def _fold_set(relative: Node) -> bytes:
    # DER orders the members of a set by their encoding, and folding can change that order
    return write(SET, *sorted(_fold_attribute(attribute) for attribute in read_all(relative.content)))


def _fold_attribute(attribute: Node) -> bytes:
    kind, value = read_all(attribute.content)
    encoding = _FOLDED.get(value.tag)
    if encoding is None:
        return attribute.whole
    # Only ASCII is folded: letters to lower case, runs of white space to one space, none at the ends.
    text = value.content.decode(encoding, "replace").encode()
    return write(SEQUENCE, kind.whole, write(UTF8_STRING, b" ".join(text.lower().split())))


def java_trust_store(certificates: Iterable[bytes]) -> bytes:
    """A PKCS#12 file (RFC 7292) whose certificates Java trusts, readable under any password and under none.

    It holds public certificates only, so nothing is encrypted and there is no integrity code, which Java would verify
    against a password that not every program is told. `cryptography` can write neither that nor some system roots.
    """
    bags = (_bag(number, certificate) for number, certificate in enumerate(certificates))
    contents = write(SEQUENCE, *bags)
    safe = write(SEQUENCE, _content(contents))
    return write(SEQUENCE, write(INTEGER, b"\x03"), _content(safe))


def _content(data: bytes) -> bytes:
    return write(SEQUENCE, _DATA, write(_EXPLICIT, write(OCTET_STRING, data)))


def _bag(number: int, certificate: bytes) -> bytes:
    read_one(certificate)
    inner = write(SEQUENCE, _X509_CERTIFICATE, write(_EXPLICIT, write(OCTET_STRING, certificate)))
    alias = write(BMP_STRING, f"root-{number}".encode("utf-16-be"))
    attributes = write(
        SET,
        *sorted(
            (
                write(SEQUENCE, _FRIENDLY_NAME, write(SET, alias)),
                write(SEQUENCE, _TRUSTED_FOR, write(SET, _ANY_USAGE)),
            )
        ),
    )
    return write(SEQUENCE, _CERTIFICATE_BAG, write(_EXPLICIT, inner), attributes)
