"""The certificate authority: made on first use, rotated with overlap, and the only thing that signs.

Its key is read from the state file into this process and goes nowhere else: there is no way to export it, it is not in
any `repr`, and it does not pickle. After a rotation the old root stays trusted until the overlap ends and the old key
is destroyed; the bridge that it signed before lets sandboxes with the old bundle accept the new leaves.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.errors import AuthorityError
from certs.names import parse_leaf_name
from certs.profiles import PATH_LENGTH, build_bridge, build_leaf, build_root
from certs.store import STATE_NAME, Retired, State, locked, opened, read_state, write_state

OVERLAP = timedelta(days=30)
RENEW_BEFORE = timedelta(days=60)  # longer than the overlap: no leaf ever chains to an expired root
_PEM = serialization.Encoding.PEM
_UNUSABLE = "move the directory away; a new authority is made at the next start, and running sessions must restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A server certificate. `chain` is PEM, the leaf first, then the bridges to roots that are still trusted."""

    name: str
    authority: str
    certificate: x509.Certificate
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    signer: x509.Certificate
    state: State

    @property
    def id(self) -> str:
        return x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()).digest.hex()


class CertificateAuthority:
    """The signer of this state directory. One object serves one thread."""

    __slots__ = ("_directory", "_loaded", "_mark", "id")

    def __init__(self, directory: Path, loaded: _Loaded) -> None:
        """Not for callers: use `load_or_create`."""
        self._directory = directory
        self._mark: tuple[int, int] | None = None
        self._use(loaded)

    @classmethod
    def load_or_create(cls, directory: Path, now: datetime) -> Self:
        """Load the authority, making it on first use and renewing it 60 days before its end.

        Any number of processes may start at once: one makes it, the others load that one. `now` is aware, UTC.
        Raises `AuthorityError` when the directory is not private to this user, or its content is not usable.
        """
        return cls(directory, _load_or_create(directory, now))

    @classmethod
    def replace(cls, directory: Path, now: datetime, *, overlap: timedelta = OVERLAP) -> Self:
        """Rotate whatever the directory holds, also a signer that the clock makes unusable."""
        return cls(directory, _replace(directory, now, overlap))

    def rotate(self, now: datetime, *, overlap: timedelta = OVERLAP) -> None:
        """Make a new signer. The old root stays trusted for `overlap`; zero drops it at once (a key that leaked)."""
        self._use(_replace(self._directory, now, overlap))

    def reload(self, now: datetime) -> bool:
        """Take over a rotation that another process made, or one that is due; whether the signer changed.

        A few microseconds when there is neither: call it as often as once a second.
        """
        mark = _mark(self._directory)  # before the reading: a change in between is seen at the next call
        if mark == self._mark and now < self._loaded.state.renew:
            return False
        before = self.id
        self._use(_load_or_create(self._directory, now))
        self._mark = mark
        return self.id != before

    def _use(self, loaded: _Loaded) -> None:
        self._loaded, self.id = loaded, loaded.id

    @property
    def signer(self) -> x509.Certificate:
        """The root that signs new leaves."""
        return self._loaded.signer

    def certificates(self, now: datetime) -> tuple[x509.Certificate, ...]:
        """All roots to trust at that time, the signer's first."""
        return tuple(x509.load_pem_x509_certificates(self.pem(now)))

    def pem(self, now: datetime) -> bytes:
        """The same as PEM: what a trust bundle adds to the system's roots."""
        return self._loaded.state.trusted(now).encode()

    def issue(self, name: str, public_key: ec.EllipticCurvePublicKey, now: datetime) -> Leaf:
        """Sign a leaf for exactly one name, DNS or literal address. Raises `UnusableNameError`."""
        loaded = self._loaded
        _check_clock(loaded.signer, now)
        certificate = build_leaf(parse_leaf_name(name), public_key, issuer=loaded.signer, key=loaded.key, now=now)
        bridges = "".join(old.bridge for old in loaded.state.retired if old.until > now)
        chain = certificate.public_bytes(_PEM) + bridges.encode()
        return Leaf(name=name, authority=self.id, certificate=certificate, chain=chain)

    def __repr__(self) -> str:
        return f"<CertificateAuthority {self.id[:12]} in {self._directory}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a certificate authority stays in its process")


def _mark(directory: Path) -> tuple[int, int]:
    try:
        found = (directory / STATE_NAME).stat(follow_symlinks=False)
    except OSError as error:
        raise AuthorityError(f"the authority's state in {directory} is gone", "restart, or put it back") from error
    return found.st_ino, found.st_ctime_ns


def _load_or_create(directory: Path, now: datetime) -> _Loaded:
    with opened(directory, create=True) as descriptor:
        state = read_state(descriptor, directory)
        if state is None or now >= state.renew:
            with locked(descriptor):
                state = read_state(descriptor, directory)  # another process may have been first
                if state is None or now >= state.renew:
                    state = _successor(_load(state, directory) if state else None, now, OVERLAP)
                    write_state(descriptor, state)
    loaded = _load(state, directory)
    _check_clock(loaded.signer, now)
    return loaded


def _replace(directory: Path, now: datetime, overlap: timedelta) -> _Loaded:
    with opened(directory, create=True) as descriptor, locked(descriptor):
        state = read_state(descriptor, directory)
        state = _successor(_load(state, directory) if state else None, now, overlap)
        write_state(descriptor, state)
    return _load(state, directory)


def _successor(old: _Loaded | None, now: datetime, overlap: timedelta) -> State:
    key = ec.generate_private_key(ec.SECP256R1())
    root = build_root(key, now)
    return State(
        key=key.private_bytes(
            _PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        ).decode(),
        certificate=root.public_bytes(_PEM).decode(),
        renew=root.not_valid_after_utc - RENEW_BEFORE,
        retired=_retire(old, root, now, overlap) if old else (),
    )


def _retire(old: _Loaded, root: x509.Certificate, now: datetime, overlap: timedelta) -> tuple[Retired, ...]:
    until = min(now + overlap, old.signer.not_valid_after_utc)
    # No overlap: everything older goes too, because an older root would still vouch for the dropped key's bridge.
    # A signer from the future (the clock was wrong when it was made) is nothing that a client could verify.
    if until <= now or now < old.signer.not_valid_before_utc:
        return ()
    bridge = build_bridge(root, issuer=old.signer, key=old.key, now=now, until=until)
    newest = Retired(certificate=old.state.certificate, bridge=bridge.public_bytes(_PEM).decode(), until=until)
    return (newest, *(older for older in old.state.retired if older.until > now))[:PATH_LENGTH]


def _load(state: State, directory: Path) -> _Loaded:
    try:
        key = serialization.load_pem_private_key(state.key.encode(), None)
        signer = x509.load_pem_x509_certificate(state.certificate.encode())
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"the key or certificate in {directory} cannot be read", _UNUSABLE) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != signer.public_key():
        raise AuthorityError(f"the key in {directory} does not belong to its certificate", _UNUSABLE)
    return _Loaded(key=key, signer=signer, state=state)


def _check_clock(signer: x509.Certificate, now: datetime) -> None:
    start, end = signer.not_valid_before_utc, signer.not_valid_after_utc
    if not start <= now < end:
        cause = f"the certificate authority is valid from {start:%F} to {end:%F}, and the clock says {now:%F}"
        raise AuthorityError(cause, "set the clock; if it is right, run `wicketgate certs rotate`")
