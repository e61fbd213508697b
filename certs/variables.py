"""The variables that tools look at for roots, as one table. Pure.

A bundle replaces a tool's own roots, so it holds the system's roots too. Left out on purpose: variables that weaken or
change more than the roots (`NODE_TLS_REJECT_UNAUTHORIZED`, `GIT_SSL_NO_VERIFY`, `PGSSLROOTCERT`, which alters libpq's
mode of verification).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class KitPaths:
    """Where the parts of the kit are inside the sandbox."""

    bundle: PurePosixPath
    directory: PurePosixPath
    java: PurePosixPath


# Variables whose value is the PEM bundle, and who reads them.
BUNDLE_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "SSL_CERT_FILE": "OpenSSL, Go, Ruby, Perl, PHP, rustls, httpx, uv, .NET",
        "CURL_CA_BUNDLE": "curl, requests",
        "REQUESTS_CA_BUNDLE": "requests, pip's and poetry's session, Azure",
        "PIP_CERT": "pip",
        "GIT_SSL_CAINFO": "git, also when built on GnuTLS",
        "NODE_EXTRA_CA_CERTS": "Node, Bun, Electron",
        "NPM_CONFIG_CAFILE": "npm, pnpm",
        "YARN_HTTPS_CA_FILE_PATH": "yarn",
        "DENO_CERT": "Deno",
        "CARGO_HTTP_CAINFO": "Cargo",
        "AWS_CA_BUNDLE": "AWS",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "gRPC core",
        "NIX_SSL_CERT_FILE": "Nix",
        "HTTPLIB2_CA_CERTS": "httplib2",
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": "gcloud",
        "BUNDLE_SSL_CA_CERT": "Bundler",
        "HEX_CACERTS_PATH": "Hex",
        "COMPOSER_CAFILE": "Composer",
        "PERL_LWP_SSL_CA_FILE": "LWP",
        "JULIA_SSL_CA_ROOTS_PATH": "Julia",
        "SYSTEM_CERTIFICATE_PATH": "Haskell's x509-system",
        "CONAN_CACERT_PATH": "Conan",
        "WEBSOCKET_CLIENT_CA_BUNDLE": "websocket-client",
    }
)
JAVA_PASSWORD = "changeit"  # noqa: S105  (Java's own well-known default; the store holds nothing secret)


def kit_environment(paths: KitPaths) -> dict[str, str]:
    """Every variable of the kit. The caller merges them after its closed list, so that nothing overrides them."""
    store = f"-Djavax.net.ssl.trustStore={paths.java}"
    return {
        **dict.fromkeys(BUNDLE_VARIABLES, str(paths.bundle)),
        "SSL_CERT_DIR": str(paths.directory),
        "JAVA_TOOL_OPTIONS": (
            f"{store} -Djavax.net.ssl.trustStoreType=PKCS12 -Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}"
        ),
    }
