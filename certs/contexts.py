"""Ready TLS server contexts for the sandbox's side, one for each name, bounded and cached.

One leaf key serves all names: what a leaf proves is only that our authority signed it, and making and loading a key
for each would double the cost. The key lives in this process; it passes through an anonymous file in memory on its way
into OpenSSL, because `ssl` loads keys from paths only, and never touches a disk.
"""

import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.authority import CertificateAuthority, Leaf
from certs.errors import AuthorityError

DEFAULT_LIMIT = 512
RENEW_BEFORE = timedelta(days=1)
_MOST_SESSIONS = 256
# TLS 1.2: forward secrecy and an AEAD only. OpenSSL chooses the TLS 1.3 suites itself.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_OPTIONS = (
    ssl.OP_NO_TICKET
    | ssl.OP_NO_COMPRESSION
    | ssl.OP_NO_RENEGOTIATION
    | ssl.OP_CIPHER_SERVER_PREFERENCE
    | ssl.OP_SINGLE_ECDH_USE
)


type _Key = tuple[str, tuple[str, ...], str]


@dataclass(slots=True, kw_only=True)
class _Entry:
    context: ssl.SSLContext
    start: datetime
    renew: datetime
    uses: int = 0  # since its sessions were counted, and those that there were then

    def serves(self, now: datetime) -> bool:
        """Whether it is good for one more connection, which is counted."""
        self.uses += 1
        if self.uses > _MOST_SESSIONS:
            # `ssl` cannot turn OpenSSL's cache of TLS 1.2 sessions off, and it holds 20,000 of them for each context: a
            # client that only shakes hands would fill memory. A fresh context has an empty one.
            self.uses = self.context.session_stats()["number"] + 1
        return self.start <= now < self.renew and self.uses <= _MOST_SESSIONS


class LeafCache:
    """Contexts by name, protocols and group, least recently used first out. A new signer empties it."""

    __slots__ = ("_authority", "_clock", "_entries", "_key", "_limit", "_signer")

    def __init__(
        self,
        authority: CertificateAuthority,
        *,
        limit: int = DEFAULT_LIMIT,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._authority = authority
        self._limit = limit
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._signer = authority.id

    def context_for(self, name: str, alpn: tuple[str, ...] = (), group: str = "") -> ssl.SSLContext:
        """A server context with a leaf for exactly `name`, offering the protocols in this order.

        With `group` (a name that OpenSSL knows) the key exchange is by it and no other: for clients that offer it.

        Call it only when the policy has a use for the leaf. About 1 ms on a miss, 2 µs on a hit. Raises
        `UnusableNameError` for a name that no certificate can carry, and `AuthorityError` when the clock left the
        authority's life.
        """
        now = self._clock()
        if self._authority.id != self._signer:
            self._entries.clear()
            self._signer = self._authority.id
        key = (name, alpn, group)
        entry = self._entries.get(key)
        if entry is None or not entry.serves(now):
            entry = self._add(key, now)
        self._entries.move_to_end(key)
        return entry.context

    def _add(self, key: _Key, now: datetime) -> _Entry:
        name, alpn, group = key
        leaf = self._authority.issue(name, self._key.public_key(), now)
        certificate = leaf.certificate
        entry = _Entry(
            context=_server_context(leaf, self._key, alpn, group),
            start=certificate.not_valid_before_utc,
            renew=max(certificate.not_valid_after_utc - RENEW_BEFORE, now + timedelta(minutes=1)),
        )
        self._entries[key] = entry
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<LeafCache of {len(self._entries)} for {self._authority!r}>"


def _server_context(leaf: Leaf, key: ec.EllipticCurvePrivateKey, alpn: tuple[str, ...], group: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= _OPTIONS
    context.num_tickets = 0
    context.set_ciphers(_CIPHERS)
    if group:
        context.set_ecdh_curve(group)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    # SEC1 loads a third faster than PKCS#8
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _load_from_memory(context, leaf.chain + pem)
    return context


def _load_from_memory(context: ssl.SSLContext, pem: bytes) -> None:
    descriptor = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError as error:
        raise AuthorityError("/proc is not mounted, and a TLS key cannot be loaded without it", "mount it") from error
    finally:
        os.close(descriptor)
