"""What inspection needs: leaves for the sandbox's side, trust for the internet's side. Loaded when first needed.

The authority's key is read here and nowhere else. `cryptography` is imported with it, which takes longer than all the
rest of a broker's start.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from broker.policy.rule import ORDINARY, UpstreamTls

if TYPE_CHECKING:
    from certs.authority import CertificateAuthority
    from certs.contexts import LeafCache
    from certs.upstream import UpstreamTrust

UPSTREAM_PROTOCOLS = (("http/1.1",),)


class Inspector:
    """One for all sessions of a broker. `extra`: PEM texts that upstream connections trust too."""

    def __init__(self, directory: Path, extra: tuple[bytes, ...] = ()) -> None:
        self._directory = directory
        self._extra = extra
        self._authority: CertificateAuthority | None = None
        self._leaves: LeafCache | None = None
        self._trust: UpstreamTrust | None = None
        self._files: dict[str, tuple[int, bytes]] = {}

    def authority_pem(self) -> bytes:
        """The authority's trusted certificates, for the trust kit; the authority is made on first use."""
        from certs.store import trusted_pem  # noqa: PLC0415

        now = datetime.now(UTC)
        known = trusted_pem(self._directory, now)
        if known is not None:
            return known
        self.load()
        known = trusted_pem(self._directory, now)
        assert known is not None
        return known

    def load(self) -> None:
        """Read (or make) the authority and the roots."""
        if self._leaves is not None and self._trust is not None:
            return  # without the imports below: this is asked for every connection
        from certs.authority import CertificateAuthority  # noqa: PLC0415
        from certs.contexts import LeafCache  # noqa: PLC0415
        from certs.upstream import UpstreamTrust  # noqa: PLC0415

        if self._leaves is None:
            self._authority = CertificateAuthority.load_or_create(self._directory, datetime.now(UTC))
            self._leaves = LeafCache(self._authority)
        if self._trust is None:
            self._trust = UpstreamTrust(extra=self._extra)

    def warm(self) -> None:
        """Load at start what the first connections would wait for. Raises CertsError."""
        self.load()
        assert self._trust is not None
        self._trust.warm(*UPSTREAM_PROTOCOLS)

    def reload(self) -> bool:
        """Take over a rotation of the authority, if there was one; whether the signer changed. Raises CertsError."""
        return self._authority is not None and self._authority.reload(datetime.now(UTC))

    def server_context(self, name: str, alpn: tuple[str, ...], group: str = "") -> ssl.SSLContext:
        """A context with a leaf for exactly this name; with `group`, key exchange is by it alone. Raises CertsError."""
        self.load()
        assert self._leaves is not None
        return self._leaves.context_for(name, alpn, group)

    def client_context(self, host: str, alpn: tuple[str, ...], rule: UpstreamTls = ORDINARY) -> ssl.SSLContext:
        """A context that trusts the system's roots, the configured ones and the rule's. Raises CertsError, OSError."""
        self.load()
        assert self._trust is not None
        if rule is ORDINARY:
            return self._trust.context_for(host, alpn)
        from certs.upstream import ClientCertificate  # noqa: PLC0415

        client = ClientCertificate(certificate=Path(rule.certificate), key=Path(rule.key)) if rule.key else None
        return self._trust.context_for(host, alpn, ca=self._read(rule.cacert), client=client)

    def _read(self, path: str) -> bytes:
        """A rule's PEM file, read again when it has changed: a renewal needs no reload."""
        if not path:
            return b""
        place = Path(path)
        mark = place.stat().st_mtime_ns
        known = self._files.get(path)
        if known is None or known[0] != mark:
            known = self._files[path] = (mark, place.read_bytes())
        return known[1]
