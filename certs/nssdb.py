"""The added roots as an NSS database, for browsers: Chromium reads user-added roots from `~/.pki/nssdb` only.

Writes the two SQLite files that NSS's software token keeps (PKCS #11 attributes as columns, numbers big-endian). The
key database stays uninitialised: with a password set, NSS would ask for signatures over the trust flags that only it
can make. Holds public certificates only.
"""

import errno
import hashlib
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from certs.der import INTEGER, VERSION, certificate_fields, read_all, read_one

# The columns of NSS's schema: PKCS #11 attribute types in hexadecimal. All of them must exist, few are used.
_SCHEMA = """
a0 a1 a2 a3 a10 a11 a12 a80 a81 a82 a83 a84 a85 a86 a87 a88 a89 a8a a8b a90 a100 a101 a102 a103 a104 a105 a106 a107
a108 a109 a10a a10b a10c a110 a111 a120 a121 a122 a123 a124 a125 a126 a127 a128 a129 a130 a131 a132 a133 a134 a160
a161 a162 a163 a164 a165 a166 a170 a180 a181 a200 a201 a202 a210 a300 a301 a302 a400 a401 a402 a403 a404 a405 a406
a480 a481 a482 a500 a501 a502 a503 a40000211 a40000212 a80000001 ace534351 ace534352 ace534353 ace534354 ace534355
ace534356 ace534357 ace534358 ace534364 ace534365 ace534366 ace534367 ace534368 ace534369 ace534373 ace534374
ace536351 ace536352 ace536353 ace536354 ace536355 ace536356 ace536357 ace536358 ace536359 ace53635a ace53635b
ace53635c ace53635d ace53635e ace53635f ace536360 ace5363b4 ace5363b5 ad5a0db00
"""
_COLUMNS = tuple(_SCHEMA.split())
_INDEXES = (("issuer", "a81"), ("subject", "a101"), ("label", "a3"), ("ckaid", "a102"))
_YES, _NO = b"\x01", b"\x00"
_CERTIFICATE, _X509 = bytes(3) + b"\x01", bytes(4)  # CKO_CERTIFICATE, CKC_X_509
_TRUST = bytes.fromhex("ce534353")  # CKO_NSS_TRUST
_TRUSTED_DELEGATOR, _MUST_VERIFY = bytes.fromhex("ce534352"), bytes.fromhex("ce534353")
_EMPTY = b"\xa5\x00\x5a"  # how an empty attribute is told from an absent one
_FIRST_OBJECT = 0x20000000


def write_nss_database(directory: Path, certificates: Iterable[bytes]) -> None:
    """Write `cert9.db` and `key4.db` into a directory that has neither. Certificates in DER, trusted for servers only.

    Raises `OSError`.
    """
    rows = [row for number, certificate in enumerate(certificates) for row in _rows(number, certificate)]
    try:
        _write_certificates(directory / "cert9.db", rows)
        _write_keys(directory / "key4.db")
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"cannot write the NSS database ({error})") from error


def _write_certificates(path: Path, rows: Iterable[dict[str, bytes]]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        _create(database, "nssPublic")
        for number, row in enumerate(rows, _FIRST_OBJECT):
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            database.execute(f"INSERT INTO nssPublic (id, {names}) VALUES (?, {marks})", (number, *row.values()))  # noqa: S608


def _write_keys(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        _create(database, "nssPrivate")
        database.execute("CREATE TABLE metaData (id PRIMARY KEY UNIQUE ON CONFLICT REPLACE, item1, item2)")


def _create(database: sqlite3.Connection, table: str) -> None:
    database.execute("PRAGMA synchronous = OFF")  # a file that a crash cuts is made again
    database.execute(f"CREATE TABLE {table} (id PRIMARY KEY UNIQUE ON CONFLICT ABORT, {', '.join(_COLUMNS)})")
    for name, column in _INDEXES:
        database.execute(f"CREATE INDEX {name} ON {table} ({column})")


def _rows(number: int, certificate: bytes) -> tuple[dict[str, bytes], dict[str, bytes]]:
    subject, _ = certificate_fields(certificate)
    fields = list(read_all(next(read_all(read_one(certificate).content)).content))
    serial, issuer = (fields[1], fields[3]) if fields[0].tag == VERSION else (fields[0], fields[2])
    assert serial.tag == INTEGER
    sha1 = hashlib.sha1(certificate, usedforsecurity=False).digest()
    place = {"a1": _YES, "a81": issuer.whole, "a82": serial.whole, "a170": _YES}
    return (
        place
        | {"a0": _CERTIFICATE, "a2": _NO, "a3": f"Wicketgate {number}".encode(), "a11": certificate, "a80": _X509}
        | {"a101": subject.whole, "a102": sha1},
        place
        | {"a0": _TRUST, "a2": _NO, "a3": _EMPTY, "ace536358": _TRUSTED_DELEGATOR, "ace536359": _MUST_VERIFY}
        | {"ace53635a": _MUST_VERIFY, "ace53635b": _MUST_VERIFY, "ace536360": _NO, "ace5363b4": sha1}
        | {"ace5363b5": hashlib.md5(certificate, usedforsecurity=False).digest()},
    )
