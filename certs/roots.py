"""Find the system's roots and read PEM files. Standard library only."""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from certs.der import DerError, certificate_fields
from certs.errors import TrustBundleError

# Where distributions keep the bundle; the first that exists is taken.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine, Gentoo
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",  # older RHEL
    "/var/lib/ca-certificates/ca-bundle.pem",  # openSUSE
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/certs/ca-bundle.crt",  # NixOS
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_INSTALL = "install the distribution's `ca-certificates` package"
_BLOCK = re.compile(
    rb"-----BEGIN (?P<kind>(?:X509 |TRUSTED )?CERTIFICATE)-----(?P<body>[^-]*)-----END (?P=kind)-----", re.ASCII
)
_LARGEST = 32 << 20


def system_bundle(candidates: Sequence[str | Path] | None = None) -> Path:
    """The file with the system's roots. Raises `TrustBundleError` (missing trust bundle)."""
    for candidate in SYSTEM_BUNDLES if candidates is None else candidates:
        path = Path(candidate)
        if path.is_file() and path.stat().st_size:
            return path
    if candidates is None:
        import ssl  # noqa: PLC0415  (20 ms that a start on a known distribution saves)

        return system_bundle([ssl.get_default_verify_paths().openssl_cafile])
    raise TrustBundleError("missing trust bundle: no file with the system's root certificates was found", _INSTALL)


def read_pem_file(path: Path) -> bytes:
    """Read a bundle, at most 32 MiB. Raises `TrustBundleError`."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise TrustBundleError(
            f"cannot read the certificates in {path}: {error.strerror}", "name a PEM file"
        ) from error
    if len(data) > _LARGEST:
        raise TrustBundleError(f"{path} is larger than 32 MiB", "name a PEM file with certificates")
    return data


def parse_pem(data: bytes, source: object) -> tuple[bytes, ...]:
    """All certificates (DER) in a PEM text, in order; other blocks and comments are skipped.

    Raises `TrustBundleError` when there is none, or one of them is damaged. `source` names the text in the message.
    """
    found = tuple(_decode(block["body"], source) for block in _BLOCK.finditer(data))
    if not found or len(found) != len(re.findall(rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----", data)):
        raise TrustBundleError(f"no certificates, or a damaged one, in {source}", "name a PEM file with certificates")
    return found


def format_pem(certificates: Iterable[bytes]) -> bytes:
    """Certificates (DER) as one PEM text."""
    return b"".join(_encode(certificate) for certificate in certificates)


def _encode(certificate: bytes) -> bytes:
    text = base64.b64encode(certificate)
    lines = (text[start : start + 64] + b"\n" for start in range(0, len(text), 64))  # RFC 7468 §2
    return b"-----BEGIN CERTIFICATE-----\n" + b"".join(lines) + b"-----END CERTIFICATE-----\n"


def _decode(body: bytes, source: object) -> bytes:
    try:
        der = base64.b64decode(b"".join(body.split()), validate=True)
        certificate_fields(der)
    except (binascii.Error, DerError) as error:
        raise TrustBundleError(f"a damaged certificate in {source}", "replace it") from error
    return der
