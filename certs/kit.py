"""The trust kit on disk: written once for each set of inputs, then reused at a cost of microseconds.

A kit is a directory of its inputs' digest, made beside its place and renamed into it, so that any number of starts can
make it at once. It holds public certificates only. Standard library only: this is on the path of every start.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath

from certs.errors import TrustBundleError
from certs.roots import parse_pem, read_pem_file, system_bundle

_FORMAT = b"2"  # changes when the content for the same inputs changes
_UNUSED = timedelta(days=180)  # far longer than a session: a live one has its kit mounted
_READY = "kit.json"
# Whole directories, so that a sandbox needs three mounts.
_TOPS = (PurePosixPath("/etc/ssl"), PurePosixPath("/etc/pki"), PurePosixPath("/etc/ca-certificates"))
_NSS = PurePosixPath(".pki/nssdb")
_HOME = (_NSS / "cert9.db", _NSS / "key4.db")
# OpenSSL's configuration lives in the directories that the kit covers.
_CONFIGURATION = ("/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A ready kit.

    `mounts`: (source on the host, destination in the sandbox) directories, to be bound read-only. `home`: (source, path
    below the sandbox's home) files to be copied there, because browsers open them for writing; may be empty.
    """

    directory: Path
    environment: Mapping[str, str]
    mounts: tuple[tuple[Path, PurePosixPath], ...]
    home: tuple[tuple[Path, PurePosixPath], ...] = ()

    def home_files(self) -> tuple[tuple[bytes, PurePosixPath], ...]:
        """The files for the sandbox's home as (content, path below it). Raises `TrustBundleError`."""
        try:
            return tuple((_content(source, _mark(source)), place) for source, place in self.home)
        except OSError as error:
            raise TrustBundleError(
                f"{error.filename} cannot be read ({error.strerror})", "remove that directory"
            ) from error


@lru_cache(maxsize=8)
def _content(path: Path, _mark: object) -> bytes:
    """A file of a kit. Every session with the same kit holds the same bytes, not a copy of its own."""
    return path.read_bytes()


def kits_directory(state_dir: Path) -> Path:
    """Where the kits live inside a state directory."""
    return state_dir / "trust"


def prepare_kit(
    directory: Path,
    *,
    ca_pem: bytes,
    extra: Sequence[bytes] = (),
    now: datetime,
    bundles: Sequence[str | Path] | None = None,
) -> Kit:
    """Make the kit for these roots in `directory` (created, 0700), or find it there.

    `ca_pem`: the authority's trusted certificates (`trusted_pem`, or `CertificateAuthority.pem`; empty where
    nothing is inspected). `extra`: the texts of configured PEM files. `bundles`: where to look for the system's roots.
    Raises `TrustBundleError`.
    """
    system = system_bundle(bundles)
    path = directory / _digest(system, ca_pem, extra)
    try:
        _check_directory(directory)
        environment = json.loads((path / _READY).read_bytes())
    except (OSError, ValueError):
        environment = _make(path, read_pem_file(system), ca_pem, extra, now)
    else:
        with suppress(OSError):  # another user's kit, or a read-only place: it is only not remembered as used
            os.utime(path, (now.timestamp(), now.timestamp()))
    mounts = tuple((path / top.relative_to("/"), top) for top in _TOPS)
    home = tuple((path / "home" / name, name) for name in _HOME) if ca_pem or extra else ()
    return Kit(directory=path, environment=environment, mounts=mounts, home=home)


def _check_directory(directory: Path) -> None:
    # who can write here can make the sandbox trust anybody
    if directory.stat().st_mode & 0o022:
        raise TrustBundleError(f"other users can write {directory}", f"chmod go-w {directory}, after a look at it")


def _digest(system: Path, ca_pem: bytes, extra: Sequence[bytes]) -> str:
    # The system's files count by identity, size and change time: hashing 220 KB would cost more than all the rest.
    marks = [_mark(system), *(_mark(Path(path)) for path in _CONFIGURATION)]
    parts = (_FORMAT, repr(marks).encode(), ca_pem, *extra)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _mark(path: Path) -> tuple[str, int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _make(path: Path, system: bytes, ca_pem: bytes, extra: Sequence[bytes], now: datetime) -> dict[str, str]:
    from certs.bundle import PATHS, kit_files  # noqa: PLC0415  (a start that finds its kit does not need them)
    from certs.variables import kit_environment  # noqa: PLC0415

    files = dict(kit_files(system, ca_pem, extra))
    for configuration in _CONFIGURATION:
        if Path(configuration).is_file():
            files[PurePosixPath(configuration)] = Path(configuration).read_bytes()
    environment = kit_environment(PATHS)
    added = [c for text in (ca_pem, *extra) if text for c in parse_pem(text, "the added certificates")]
    try:
        _write_kit(path, files, list(dict.fromkeys(added)), environment, now)
        _sweep(path.parent, now)
    except OSError as error:
        cause = f"cannot write the trust kit in {path.parent}: {error.strerror}"
        raise TrustBundleError(cause, "name a state directory that this user can write") from error
    return environment


def _write_kit(
    path: Path,
    files: Mapping[PurePosixPath, bytes],
    added: Sequence[bytes],
    environment: Mapping[str, str],
    now: datetime,
) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = path.parent / f".making-{os.urandom(8).hex()}"
    written: dict[int, Path] = {}
    try:
        for name, content in files.items():
            _write_file(making / name.relative_to("/"), content, written)
        for top in _TOPS:
            (making / top.relative_to("/")).mkdir(parents=True, exist_ok=True)
        _write_home(making / "home", added)
        (making / _READY).write_text(json.dumps(environment))
        for inner, _, _ in os.walk(making):
            os.chmod(inner, 0o755)  # noqa: S103, PTH101  (readable for the payload whatever the umask)
        os.utime(making, (now.timestamp(), now.timestamp()))
        _put(making, path)
    finally:
        _remove(making)


def _write_home(home: Path, added: Sequence[bytes]) -> None:
    from certs.nssdb import write_nss_database  # noqa: PLC0415

    (home / _NSS).mkdir(parents=True)
    if not added:
        return
    write_nss_database(home / _NSS, added)
    for name in _HOME:
        (home / name).chmod(0o644)


def _write_file(path: Path, content: bytes, written: dict[int, Path]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if (first := written.get(id(content))) is not None:
        path.hardlink_to(first)
        return
    path.write_bytes(content)
    path.chmod(0o644)
    written[id(content)] = path


def _put(making: Path, path: Path) -> None:
    try:
        making.rename(path)
    except OSError:
        if (path / _READY).exists():  # another start was first, with the same content
            return
        _remove(path)  # not a whole kit: someone deleted a part of it
        making.rename(path)


def _sweep(directory: Path, now: datetime) -> None:
    """Remove kits that no start has used for half a year, and what a killed start left."""
    for entry in directory.iterdir():
        limit = 3600.0 if entry.name.startswith(".making-") else _UNUSED.total_seconds()
        with suppress(FileNotFoundError):  # another start's, which has just finished
            if now.timestamp() - entry.stat().st_mtime > limit:
                _remove(entry)


def _remove(directory: Path) -> None:
    import shutil  # noqa: PLC0415  (5 ms that a start which finds its kit saves)

    shutil.rmtree(directory, ignore_errors=True)
