"""The trust kit's content: every file that a sandbox shows instead of the system's, as bytes. No I/O.

The bundle is the system's roots, then our authority's, then the extra ones; a certificate appears once. The same bytes
stand at every path where a distribution's programs look, so that it does not matter which image's programs run inside.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from certs.roots import format_pem, parse_pem
from certs.truststore import hashed_names, java_trust_store
from certs.variables import KitPaths

PATHS = KitPaths(
    bundle=PurePosixPath("/etc/ssl/certs/ca-certificates.crt"),
    directory=PurePosixPath("/etc/ssl/certs"),
    java=PurePosixPath("/etc/ssl/certs/java/cacerts"),
)
# The paths of Debian, Fedora, openSUSE, Arch, Alpine and NixOS.
BUNDLE_PATHS = (
    PATHS.bundle,
    PurePosixPath("/etc/ssl/certs/ca-bundle.crt"),
    PurePosixPath("/etc/ssl/cert.pem"),
    PurePosixPath("/etc/ssl/ca-bundle.pem"),
    PurePosixPath("/etc/pki/tls/cert.pem"),
    PurePosixPath("/etc/pki/tls/cacert.pem"),
    PurePosixPath("/etc/pki/tls/certs/ca-bundle.crt"),
    PurePosixPath("/etc/pki/tls/certs/ca-certificates.crt"),
    PurePosixPath("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),
    PurePosixPath("/etc/ca-certificates/extracted/tls-ca-bundle.pem"),
    PurePosixPath("/etc/ca-certificates/extracted/cadir.pem"),
)
JAVA_PATHS = (
    PATHS.java,
    PurePosixPath("/etc/pki/java/cacerts"),
    PurePosixPath("/etc/pki/ca-trust/extracted/java/cacerts"),
    PurePosixPath("/etc/ca-certificates/extracted/java-cacerts"),
)
# p11-kit, and NSS through it, reads anchors here beside the ones under /usr.
ANCHOR_PATHS = (
    PurePosixPath("/etc/pki/ca-trust/source/anchors/wicketgate.pem"),
    PurePosixPath("/etc/ca-certificates/trust-source/anchors/wicketgate.pem"),
)


def merge(system: bytes, authority: bytes, extra: Sequence[bytes]) -> tuple[bytes, ...]:
    """All certificates (DER) of the PEM texts, each once, in order. Raises `TrustBundleError`."""
    texts = ((system, "the system's trust bundle"), (authority, "the authority's certificates"))
    named = [
        *texts[: 2 if authority else 1],
        *((text, f"the extra certificates ({number})") for number, text in enumerate(extra, 1)),
    ]
    return tuple(dict.fromkeys(certificate for text, source in named for certificate in parse_pem(text, source)))


def kit_files(system: bytes, authority: bytes, extra: Sequence[bytes] = ()) -> Mapping[PurePosixPath, bytes]:
    """Path inside the sandbox → content. Equal contents are the same object.

    `system` is PEM, `authority` the authority's trusted certificates (empty where nothing is inspected), `extra` the
    texts of configured files.
    """
    certificates = merge(system, authority, extra)
    added = format_pem(dict.fromkeys(c for text in (authority, *extra) if text for c in parse_pem(text, "added roots")))
    bundle, java = format_pem(certificates), java_trust_store(certificates)
    hashed = {PATHS.directory / name: format_pem([der]) for name, der in hashed_names(certificates)}
    return {
        **hashed,
        **dict.fromkeys(BUNDLE_PATHS, bundle),
        **dict.fromkeys(JAVA_PATHS, java),
        **(dict.fromkeys(ANCHOR_PATHS, added) if added else {}),
    }
