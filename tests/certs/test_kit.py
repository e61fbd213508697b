"""The trust kit: what is in it, that it is made once, and that it costs a start nothing."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path, PurePosixPath

import pytest
from cryptography import x509

from certs.authority import CertificateAuthority
from certs.bundle import ANCHOR_PATHS, BUNDLE_PATHS, JAVA_PATHS, PATHS, kit_files
from certs.errors import TrustBundleError
from certs.kit import Kit, prepare_kit
from certs.roots import SYSTEM_BUNDLES, format_pem, parse_pem, system_bundle
from certs.variables import BUNDLE_VARIABLES, kit_environment
from tests.certs.chains import DAY, NOW, root

SYSTEM = root(), root()
CA, EXTRA = root(), root()
SYSTEM_PEM = b"# a comment\n" + b"\n".join(issuer.pem for issuer in SYSTEM)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "system.pem"
    path.write_bytes(SYSTEM_PEM)
    return path


def prepare(tmp_path: Path, bundle: Path, **changes: object) -> Kit:
    options: dict[str, object] = {"ca_pem": CA.pem, "now": NOW, "bundles": [bundle]} | changes
    return prepare_kit(tmp_path / "kits", **options)  # type: ignore[arg-type]


def test_the_bundle_is_the_systems_roots_then_ours_then_the_extra_ones_each_once() -> None:
    files = kit_files(SYSTEM_PEM, CA.pem, [EXTRA.pem, CA.pem + EXTRA.pem])
    wanted = [issuer.certificate for issuer in (*SYSTEM, CA, EXTRA)]
    for path in BUNDLE_PATHS:
        assert x509.load_pem_x509_certificates(files[path]) == wanted
    for path in ANCHOR_PATHS:
        assert x509.load_pem_x509_certificates(files[path]) == wanted[2:]
    assert {files[path] for path in JAVA_PATHS} == {files[PATHS.java]}
    hashed = [path for path in files if path.suffix.removeprefix(".").isdigit()]
    assert {path.parent for path in hashed} == {PATHS.directory}
    assert len(hashed) == 4


def test_every_bundle_path_that_is_looked_for_is_also_shown() -> None:
    outside_etc = {"/var/lib/ca-certificates/ca-bundle.pem"}  # the target of /etc/ssl/ca-bundle.pem, which is shown
    assert set(SYSTEM_BUNDLES) - outside_etc <= {str(path) for path in BUNDLE_PATHS}


def test_the_variables_name_files_of_the_kit() -> None:
    files = kit_files(SYSTEM_PEM, CA.pem)
    environment = kit_environment(PATHS)
    for name in BUNDLE_VARIABLES:
        assert PurePosixPath(environment[name]) in files
    assert any(path.parent == PurePosixPath(environment["SSL_CERT_DIR"]) for path in files)
    store = next(word for word in environment["JAVA_TOOL_OPTIONS"].split() if "trustStore=" in word)
    assert PurePosixPath(store.partition("=")[2]) in files
    assert all(len(value) < 4096 and value.isprintable() for value in environment.values())


def test_the_kit_on_disk_is_the_mapping_and_readable_by_all(tmp_path: Path, bundle: Path) -> None:
    before = os.umask(0o077)
    try:
        kit = prepare(tmp_path, bundle, extra=[EXTRA.pem])
    finally:
        os.umask(before)
    assert kit.environment == kit_environment(PATHS)
    sources = {destination: source for source, destination in kit.mounts}
    for path, content in kit_files(SYSTEM_PEM, CA.pem, [EXTRA.pem]).items():
        top = next(top for top in sources if path.is_relative_to(top))
        found = sources[top] / path.relative_to(top)
        assert found.read_bytes() == content
        assert stat.S_IMODE(found.stat().st_mode) == 0o644
    for source in sources.values():
        assert {stat.S_IMODE(Path(inner).stat().st_mode) for inner, _, _ in os.walk(source)} == {0o755}
    assert stat.S_IMODE((tmp_path / "kits").stat().st_mode) == 0o700


def test_the_browsers_database_holds_the_added_roots_only(tmp_path: Path, bundle: Path) -> None:
    kit = prepare(tmp_path, bundle, extra=[EXTRA.pem, CA.pem])
    files = {str(name): source for source, name in kit.home}
    assert set(files) == {".pki/nssdb/cert9.db", ".pki/nssdb/key4.db"}
    assert {stat.S_IMODE(source.stat().st_mode) for source in files.values()} == {0o644}
    with closing(sqlite3.connect(files[".pki/nssdb/cert9.db"])) as database:
        found = [row[0] for row in database.execute("SELECT a11 FROM nssPublic WHERE a11 NOT NULL ORDER BY id")]
        trusted = database.execute("SELECT count(*) FROM nssPublic WHERE ace536358 = x'ce534352'").fetchone()[0]
    assert [x509.load_der_x509_certificate(der) for der in found] == [CA.certificate, EXTRA.certificate]
    assert trusted == 2
    with closing(sqlite3.connect(files[".pki/nssdb/key4.db"])) as database:
        for table in ("nssPrivate", "metaData"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0


def test_sessions_with_the_same_kit_hold_the_same_bytes_and_no_stale_ones(tmp_path: Path, bundle: Path) -> None:
    first, second = (prepare(tmp_path, bundle).home_files() for _ in range(2))
    assert len(first) == 2
    assert all(one is other for (one, _), (other, _) in zip(first, second, strict=True))
    kit = prepare(tmp_path, bundle)
    (database, _), (keys, _) = kit.home
    database.write_bytes(b"another")
    assert kit.home_files()[0][0] == b"another"
    keys.unlink()
    with pytest.raises(TrustBundleError, match="cannot be read"):
        kit.home_files()


def test_the_same_inputs_give_the_same_kit_without_writing(tmp_path: Path, bundle: Path) -> None:
    first = prepare(tmp_path, bundle)
    marks = {path: path.stat().st_ctime_ns for path in first.directory.rglob("*") if path.is_file()}
    assert prepare(tmp_path, bundle) == first
    assert {path: path.stat().st_ctime_ns for path in marks} == marks


def test_any_changed_input_gives_another_kit(tmp_path: Path, bundle: Path) -> None:
    kits = {prepare(tmp_path, bundle).directory}
    kits.add(prepare(tmp_path, bundle, extra=[EXTRA.pem]).directory)
    kits.add(prepare(tmp_path, bundle, ca_pem=EXTRA.pem).directory)
    kits.add(prepare(tmp_path, bundle, ca_pem=CA.pem + EXTRA.pem).directory)
    bundle.write_bytes(SYSTEM[0].pem)
    kits.add(prepare(tmp_path, bundle).directory)
    assert len(kits) == 5


def test_a_kit_that_lost_its_end_is_made_again(tmp_path: Path, bundle: Path) -> None:
    kit = prepare(tmp_path, bundle)
    (kit.directory / "kit.json").unlink()
    (kit.directory / "etc/ssl/cert.pem").unlink()
    again = prepare(tmp_path, bundle)
    assert again == kit
    assert (kit.directory / "etc/ssl/cert.pem").exists()


def test_kits_that_nobody_uses_go_and_used_ones_stay(tmp_path: Path, bundle: Path) -> None:
    old = prepare(tmp_path, bundle)
    used = prepare(tmp_path, bundle, extra=[EXTRA.pem])
    left = tmp_path / "kits" / ".making-0123"
    left.mkdir()
    os.utime(left, (NOW.timestamp(), NOW.timestamp()))
    later = NOW + 181 * DAY
    prepare(tmp_path, bundle, extra=[EXTRA.pem], now=later)
    new = prepare(tmp_path, bundle, ca_pem=EXTRA.pem, now=later)
    assert used.directory.exists()
    assert new.directory.exists()
    assert not old.directory.exists()
    assert not left.exists()


RACE = """
import os, sys
from datetime import datetime
from pathlib import Path
from certs.kit import prepare_kit
import certs.bundle
gate, opener = os.pipe()
for _ in range(40):
    if os.fork() == 0:
        os.close(opener)
        os.read(gate, 1)
        kit = prepare_kit(Path(sys.argv[1]), ca_pem=Path(sys.argv[2]).read_bytes(), bundles=[sys.argv[3]],
                          now=datetime.fromisoformat(sys.argv[4]))
        os._exit(0 if (kit.mounts[0][0] / "cert.pem").read_bytes() else 1)
os.close(opener)
sys.exit(sum(os.wait()[1] != 0 for _ in range(40)))
"""


def test_forty_starts_at_once_make_one_kit(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(CA.pem)
    arguments = [str(tmp_path / "kits"), str(tmp_path / "ca.pem"), str(bundle), NOW.isoformat()]
    subprocess.run([sys.executable, "-c", RACE, *arguments], check=True, timeout=60)
    assert len(os.listdir(tmp_path / "kits")) == 1


LEAN = """
import sys
from datetime import datetime
from pathlib import Path
from certs.kit import prepare_kit
from certs.store import trusted_pem
now = datetime.fromisoformat(sys.argv[2])
pem = trusted_pem(Path(sys.argv[1]) / "certs", now)
kit = prepare_kit(Path(sys.argv[1]) / "kits", ca_pem=pem, now=now)
print(" ".join(sys.modules))
"""


def test_a_start_that_finds_its_kit_imports_nothing_heavy(tmp_path: Path) -> None:
    authority = CertificateAuthority.load_or_create(tmp_path / "certs", NOW)
    prepare_kit(tmp_path / "kits", ca_pem=authority.pem(NOW), now=NOW)
    command = [sys.executable, "-c", LEAN, str(tmp_path), NOW.isoformat()]
    loaded = set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    assert not loaded & {
        "ssl",
        "asyncio",
        "shutil",
        "cryptography",
        "certs.bundle",
        "certs.authority",
        "subprocess",
        "sqlite3",
    }


def test_a_missing_system_bundle_is_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(TrustBundleError, match="missing trust bundle") as refused:
        prepare(tmp_path, empty)
    assert "ca-certificates" in refused.value.cure
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nothing",
        CA.pem[:300],
        CA.pem.replace(b"M", b"!"),
        CA.pem + b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ],
)
def test_a_broken_input_makes_no_kit(tmp_path: Path, bundle: Path, text: bytes) -> None:
    for changes in ({"extra": [text]}, {"ca_pem": text or b"\n"}):
        with pytest.raises(TrustBundleError, match="certificate"):
            prepare(tmp_path, bundle, **changes)
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize("mode", [0o702, 0o720, 0o1777])
def test_a_place_where_others_could_plant_a_kit_is_refused(tmp_path: Path, bundle: Path, mode: int) -> None:
    prepare(tmp_path, bundle)
    (tmp_path / "kits").chmod(mode)
    with pytest.raises(TrustBundleError, match="other users can write"):
        prepare(tmp_path, bundle)


@pytest.mark.ordinary_only
def test_a_kit_in_a_place_that_became_read_only_still_serves(tmp_path: Path, bundle: Path) -> None:
    kit = prepare(tmp_path, bundle)
    kit.directory.chmod(0o555)
    (tmp_path / "kits").chmod(0o500)
    assert prepare(tmp_path, bundle) == kit
    (tmp_path / "kits").chmod(0o700)


def test_where_nothing_is_inspected_the_kit_is_the_systems_roots_and_the_extra_ones(
    tmp_path: Path, bundle: Path
) -> None:
    for extra in ([], [EXTRA]):
        kit = prepare(tmp_path, bundle, ca_pem=b"", extra=[issuer.pem for issuer in extra])
        found = (kit.directory / "etc/ssl/certs/ca-certificates.crt").read_bytes()
        assert x509.load_pem_x509_certificates(found) == [issuer.certificate for issuer in (*SYSTEM, *extra)]
        anchors = kit.directory / str(ANCHOR_PATHS[0]).removeprefix("/")
        assert anchors.exists() is bool(extra)
        assert bool(kit.home) is bool(extra)


def test_other_blocks_and_comments_in_a_bundle_are_skipped() -> None:
    trusted = CA.pem.replace(b" CERTIFICATE", b" X509 CERTIFICATE")
    text = b"# Subject: x\n-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n" + trusted + EXTRA.pem
    found = parse_pem(text.replace(b"\n", b"\r\n"), "text")
    assert x509.load_pem_x509_certificates(format_pem(found)) == [CA.certificate, EXTRA.certificate]


@pytest.mark.ordinary_only
def test_an_unwritable_place_is_said(tmp_path: Path, bundle: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrustBundleError, match="cannot write the trust kit"):
        prepare(tmp_path, bundle)
    tmp_path.chmod(0o700)


def test_the_first_system_bundle_that_exists_is_taken(tmp_path: Path, bundle: Path) -> None:
    assert system_bundle([tmp_path / "none", bundle, "/dev/null"]) == bundle
    assert system_bundle().is_file()


def test_the_kit_knows_when_it_was_last_used(tmp_path: Path, bundle: Path) -> None:
    kit = prepare(tmp_path, bundle)
    prepare(tmp_path, bundle, now=NOW + timedelta(days=3))
    assert kit.directory.stat().st_mtime == (NOW + timedelta(days=3)).timestamp()
    assert json.loads((kit.directory / "kit.json").read_text()) == kit.environment
    assert time.time() < (NOW + timedelta(days=3)).timestamp()
