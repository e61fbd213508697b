"""The Ed25519 key that signs checkpoints (RFC 8032): made on first use, kept beside the log, readable by us only.

`keys/signing.pem` is the private key; `keys/<id>.pub` are the public keys of all that ever signed here, for the
verifier. Copy the public key elsewhere to verify against it. The cryptography package takes about 25 ms to import, so
that happens when the first signature is made, never before.
"""

import base64
import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from broker.audit.errors import AuditKeyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEYS_DIRECTORY: Final = "keys"
_PRIVATE: Final = "signing.pem"
_MAX_KEY_BYTES: Final = 4096


class Signer(msgspec.Struct, frozen=True):
    """Signs with one key. `key_id` is the start of the SHA-256 of the raw public key, in hexadecimal."""

    key_id: str
    _key: "Ed25519PrivateKey"

    def sign(self, message: bytes) -> str:
        """Return the signature in base64."""
        return base64.b64encode(self._key.sign(message)).decode()


def load_signer(directory: int) -> Signer:
    """Return the key of the log's directory (a descriptor), making it if there is none.

    Several processes may come here at once: each makes a file of its own and the first to link it wins.
    Raises `AuditKeyError`.
    """
    try:
        keys = _open_keys(directory)
        try:
            return _signer(keys, _read_private(keys) or _make_private(keys))
        finally:
            os.close(keys)
    except OSError as error:
        raise AuditKeyError(f"cannot use the key that signs checkpoints: {error.strerror}") from error


def load_public_keys(directory: int) -> dict[str, "Ed25519PublicKey"]:
    """Return the public keys kept beside the log, by id. Files that are not such keys are passed over."""
    try:
        keys = os.open(KEYS_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return {}
    try:
        found = {}
        for name in os.listdir(keys):  # noqa: PTH208 - a descriptor
            if name.endswith(".pub"):
                with contextlib.suppress(OSError, AuditKeyError):
                    found.update(parse_public_key(_read(keys, name)))
        return found
    finally:
        os.close(keys)


def parse_public_key(pem: bytes) -> dict[str, "Ed25519PublicKey"]:
    """Read a PEM public key and return it under its id. Raises `AuditKeyError`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise AuditKeyError("not a public key in PEM form") from error
    if not isinstance(key, Ed25519PublicKey):
        raise AuditKeyError("not an Ed25519 key")
    return {_key_id(key): key}


def check_signature(keys: Mapping[str, "Ed25519PublicKey"], key_id: str, message: bytes, signature: bytes) -> bool:
    """Tell whether the key of that id made the signature (base64)."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    key = keys.get(key_id)
    if key is None:
        return False
    try:
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _open_keys(directory: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(KEYS_DIRECTORY, 0o700, dir_fd=directory)
    return os.open(KEYS_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _read_private(keys: int) -> bytes | None:
    try:
        status = os.stat(_PRIVATE, dir_fd=keys, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or not stat.S_ISREG(status.st_mode):
        raise AuditKeyError(f"{KEYS_DIRECTORY}/{_PRIVATE} must be a file of this user with mode 0600; move it away")
    return _read(keys, _PRIVATE)


def _make_private(keys: int) -> bytes:
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    _publish(keys, _PRIVATE, pem)
    return _read(keys, _PRIVATE)  # the winner's, which may be another process's


def _signer(keys: int, pem: bytes) -> Signer:
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    try:
        key = form.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise AuditKeyError(f"{KEYS_DIRECTORY}/{_PRIVATE} is damaged; move it away and a new one is made") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise AuditKeyError(f"{KEYS_DIRECTORY}/{_PRIVATE} is not an Ed25519 key; move it away")
    public = key.public_key()
    key_id = _key_id(public)
    public_pem = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    _publish(keys, f"{key_id}.pub", public_pem)
    return Signer(key_id, key)


def _key_id(key: "Ed25519PublicKey") -> str:
    return sha256(key.public_bytes_raw()).hexdigest()[:32]


def _publish(keys: int, name: str, content: bytes) -> None:
    """Make the file whole or not at all; one that is there stays."""
    temporary = f".{name}.{secrets.token_hex(8)}"
    file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=keys)
    try:
        try:
            if os.write(file, content) != len(content):
                raise AuditKeyError("no space for the key that signs checkpoints")
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, name, src_dir_fd=keys, dst_dir_fd=keys, follow_symlinks=False)
    finally:
        os.unlink(temporary, dir_fd=keys)


def _read(keys: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=keys)
    try:
        return os.read(file, _MAX_KEY_BYTES)
    finally:
        os.close(file)
