"""TLS contexts for the internet's side: who is trusted, and the checks that OpenSSL does not make.

Verified here, as part of the handshake itself, so that no caller can forget it: no key in the chain is one whose
private half is public, and the name matches by RFC 9525 (no common names, no wildcard over a registry's suffix). It
opens no connection and never lowers a check.
"""

import hashlib
import ssl
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from certs.alerts import UpstreamCertificateError
from certs.der import certificate_fields
from certs.errors import TrustBundleError
from certs.names import any_covers, is_address, is_registry_suffix
from certs.roots import format_pem, parse_pem, system_bundle

# SHA-256 of the subjectPublicKeyInfo of authorities whose private key anyone can have.
PUBLIC_KEYS = frozenset(
    {
        # EM OV TLS CA - G3C, an intermediate below the emSign roots: its P-384 private scalar is 4
        bytes.fromhex("63ecefee431d49523bc1136c4e72d0206a477086caf606cd5cf025686c109cf8"),
    }
)
# Level 2: nothing below 112 bits, so no SHA-1 signatures and no RSA-1024, whatever the system's OpenSSL is set to.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20:@SECLEVEL=2"
_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """What a rule presents to a server that asks for it: paths of PEM files."""

    certificate: Path
    key: Path


class _Checked:
    """The checks after a handshake, shared by both kinds of TLS object."""

    context: ssl.SSLContext
    server_hostname: Any

    def _check_peer(self) -> None:
        context = cast("UpstreamContext", self.context)
        for certificate in _verified_chain(self):
            if public_key_digest(certificate) in context.blocked:
                raise UpstreamCertificateError("a key in its chain is publicly known, anyone can sign with it")
        found: Any = cast("ssl.SSLObject", self).getpeercert()
        alternatives = found.get("subjectAltName", ()) if found else ()
        host = str(self.server_hostname)
        if not any_covers(alternatives, host):
            raise UpstreamCertificateError(f"it is not for this name but for {_listed(alternatives)}")


class _CheckedObject(_Checked, ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        self._check_peer()


class _CheckedSocket(_Checked, ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        self._check_peer()


class UpstreamContext(ssl.SSLContext):
    """A client context whose handshakes end with our checks. `server_hostname` is required."""

    sslobject_class = _CheckedObject
    sslsocket_class = _CheckedSocket
    blocked: frozenset[bytes] = PUBLIC_KEYS

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """As in `ssl`, but never without a name to check."""
        _require_name(options)
        return super().wrap_socket(*args, **options)

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """As in `ssl`, but never without a name to check."""
        _require_name(options)
        return super().wrap_bio(*args, **options)


class UpstreamTrust:
    """The roots for upstream connections, and contexts made from them.

    `extra`: PEM texts trusted for every host. `bundles`: where to look for the system's roots. `system=False` trusts
    the extra ones only. `blocked`: SHA-256 digests of public keys to refuse besides the built-in ones.
    Raises `TrustBundleError`.
    """

    __slots__ = ("_blocked", "_cache", "_extra", "_system")

    def __init__(
        self,
        *,
        extra: Sequence[bytes] = (),
        system: bool = True,
        bundles: Sequence[str | Path] | None = None,
        blocked: frozenset[bytes] = frozenset(),
    ) -> None:
        self._system = system_bundle(bundles) if system else None
        self._extra = tuple(c for number, text in enumerate(extra, 1) for c in parse_pem(text, f"extra roots {number}"))
        self._blocked = PUBLIC_KEYS | blocked
        self._cache: OrderedDict[tuple[object, ...], UpstreamContext] = OrderedDict()

    def context_for(
        self,
        host: str,
        alpn: tuple[str, ...] = (),
        *,
        ca: bytes = b"",
        client: ClientCertificate | None = None,
    ) -> UpstreamContext:
        """A context for connections to `host` (a normalised name or address), to be used with it as server_hostname.

        `ca`: PEM that the rule trusts in addition. Cached: 30 ms on a miss (see `warm`). Raises `TrustBundleError`.
        """
        ours = _needs_own_match(host)
        key = (ours, alpn, ca, client)
        context = self._cache.get(key)
        if context is None:
            context = self._cache[key] = self._make(alpn, ca, client, check_name=not ours)
            if len(self._cache) > _LIMIT:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return context

    def warm(self, *alpn: tuple[str, ...]) -> None:
        """Load at start what the first connections would wait for: contexts for these protocols, the suffix list."""
        for protocols in alpn or ((),):
            self.context_for("", protocols)
        is_registry_suffix("example")

    def _make(
        self, alpn: tuple[str, ...], ca: bytes, client: ClientCertificate | None, *, check_name: bool
    ) -> UpstreamContext:
        context = UpstreamContext(ssl.PROTOCOL_TLS_CLIENT)
        context.blocked = self._blocked
        context.check_hostname = check_name
        context.verify_mode = ssl.CERT_REQUIRED
        context.hostname_checks_common_name = False
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        # What an operator put into the store is trusted as it is, also an intermediate or a server's own certificate.
        # VERIFY_X509_STRICT stays off: it refuses many private authorities for form.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
        context.set_ciphers(_CIPHERS)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        self._load(context, ca, client)
        return context

    def _load(self, context: UpstreamContext, ca: bytes, client: ClientCertificate | None) -> None:
        added = self._extra + (parse_pem(ca, "the rule's certificates") if ca else ())
        try:
            if self._system is not None:
                context.load_verify_locations(cafile=self._system)
            if added:
                context.load_verify_locations(cadata=format_pem(added).decode())
        except OSError as error:
            raise TrustBundleError("the root certificates cannot be loaded", "name PEM files with them") from error
        if client is not None:
            _load_client(context, client)


@lru_cache(maxsize=1024)  # the same few intermediates come with every connection
def public_key_digest(certificate: bytes) -> bytes:
    """SHA-256 of the subjectPublicKeyInfo of a certificate (DER), as in key pinning (RFC 7469 §2.4)."""
    _, key = certificate_fields(certificate)
    return hashlib.sha256(key.whole).digest()


def _needs_own_match(host: str) -> bool:
    # OpenSSL matches no wildcard where a label has an underscore, browsers and curl do: `a_b.example.com` fails under
    # a certificate for `*.example.com`. For such hosts our own match stands alone; for all others both must agree.
    return "_" in host and not is_address(host)


def _require_name(options: dict[str, Any]) -> None:
    if not options.get("server_hostname") or options.get("server_side"):
        raise ValueError("an upstream connection needs server_hostname, the name that was judged")


def _verified_chain(tls: Any) -> list[bytes]:
    if sys.version_info >= (3, 13):
        return cast("list[bytes]", tls.get_verified_chain())
    # public from 3.13 on; 2 is the DER encoding
    return [certificate.public_bytes(2) for certificate in tls._sslobj.get_verified_chain()]  # noqa: SLF001


def _load_client(context: UpstreamContext, client: ClientCertificate) -> None:
    try:
        # An encrypted key must fail here, not ask on a terminal.
        context.load_cert_chain(client.certificate, client.key, password=lambda: b"")
    except (OSError, ValueError) as error:
        cause = f"the client certificate {client.certificate} or its key cannot be loaded"
        raise TrustBundleError(cause, "name a PEM certificate and its unencrypted key") from error


def _listed(alternatives: Sequence[tuple[str, str]]) -> str:
    names = [value for kind, value in alternatives if kind in {"DNS", "IP Address"}]
    shown = ", ".join("".join(c if c.isprintable() and c.isascii() else "?" for c in name[:64]) for name in names[:3])
    return (shown or "no name at all") + (f" and {len(names) - 3} more" if len(names) > 3 else "")
