"""The authority's life: made once, kept private, rotated with overlap, never exported."""

import copy
import os
import pickle
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.authority import OVERLAP, RENEW_BEFORE, CertificateAuthority
from certs.contexts import LeafCache
from certs.errors import AuthorityError
from certs.profiles import BACKDATE, PATH_LENGTH, ROOT_LIFE
from certs.store import STATE_NAME, trusted_pem
from certs.upstream import UpstreamTrust
from tests.certs.chains import DAY, NOW, curve_key, handshake

STRANGER = 12345


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def test_the_whole_profile_of_the_root(directory: Path) -> None:
    root = CertificateAuthority.load_or_create(directory, NOW).signer
    assert root.version is x509.Version.v3
    assert root.not_valid_before_utc == NOW - BACKDATE
    assert root.not_valid_after_utc == NOW + ROOT_LIFE
    assert root.signature_hash_algorithm is not None
    assert root.signature_hash_algorithm.name == "sha256"
    assert root.serial_number.bit_length() == 128
    assert root.public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
    assert root.subject == root.issuer
    assert {attribute.oid for attribute in root.subject} == {NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME}
    found = {type(e.value): (e.critical, e.value) for e in root.extensions}
    key_id = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    public = root.public_key()
    assert isinstance(public, EllipticCurvePublicKey)
    assert found == {
        x509.BasicConstraints: (True, x509.BasicConstraints(ca=True, path_length=PATH_LENGTH)),
        x509.KeyUsage: (
            True,
            x509.KeyUsage(False, False, False, False, False, True, True, False, False),
        ),
        x509.ExtendedKeyUsage: (False, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])),
        x509.SubjectKeyIdentifier: (False, key_id),
        x509.AuthorityKeyIdentifier: (False, x509.AuthorityKeyIdentifier.from_issuer_public_key(public)),
    }
    root.verify_directly_issued_by(root)


def test_two_authorities_share_neither_name_nor_key(tmp_path: Path) -> None:
    one, two = (CertificateAuthority.load_or_create(tmp_path / name, NOW).signer for name in "ab")
    assert one.subject != two.subject
    assert one.public_key() != two.public_key()


def test_the_second_start_loads_the_first_ones_authority(directory: Path) -> None:
    first = CertificateAuthority.load_or_create(directory, NOW)
    second = CertificateAuthority.load_or_create(directory, NOW + DAY)
    assert second.signer == first.signer
    assert second.id == first.id


def test_directory_and_files_are_private_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0)
    try:
        CertificateAuthority.load_or_create(directory, NOW)
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [(entry.name, stat.S_IMODE(entry.stat().st_mode)) for entry in directory.iterdir()] == [(STATE_NAME, 0o600)]


def loosen(path: Path, mode: int) -> None:
    path.chmod(mode)


def replaced_by_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def second_name(path: Path) -> None:
    path.parent.parent.joinpath("second").hardlink_to(path)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def overwritten(text: str) -> object:
    return lambda path: path.write_text(text)


REFUSED = {
    "directory open to the group": (True, lambda p: loosen(p, 0o750), "mode 0750"),
    "directory open to all": (True, lambda p: loosen(p, 0o701), "mode 0701"),
    "directory is a link": (True, replaced_by_link, "symbolic link"),
    "file open to the group": (False, lambda p: loosen(p, 0o640), "mode 0640"),
    "file is a link": (False, replaced_by_link, "cannot open"),
    "file has a second name": (False, second_name, "not a plain file"),
    "file is a fifo": (False, fifo, "not a plain file"),
    "file is empty": (False, overwritten(""), "damaged"),
    "file is no document": (False, overwritten("[]"), "damaged"),
    "file is of a later version": (False, overwritten('{"version": 2}'), "another version"),
    "file lacks a key": (False, overwritten('{"version": 1}'), "damaged"),
    "file is huge": (False, overwritten(" " * (1 << 20) + "{}"), "too large"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_others_could_have_written_is_refused_and_left_alone(directory: Path, case: str) -> None:
    CertificateAuthority.load_or_create(directory, NOW)
    whole, spoil, words = REFUSED[case]
    spoil(directory if whole else directory / STATE_NAME)  # type: ignore[operator]
    before = sorted(os.listdir(directory))
    for read in (CertificateAuthority.load_or_create, trusted_pem, CertificateAuthority.replace):
        with pytest.raises(AuthorityError, match=words) as refused:
            read(directory, NOW)  # type: ignore[operator]
        assert refused.value.cure
    assert sorted(os.listdir(directory)) == before


@pytest.mark.root_only
@pytest.mark.parametrize("inside", [False, True])
def test_another_owner_is_refused(directory: Path, inside: bool) -> None:
    CertificateAuthority.load_or_create(directory, NOW)
    os.chown(directory / STATE_NAME if inside else directory, STRANGER, STRANGER)
    with pytest.raises(AuthorityError, match=f"belongs to user {STRANGER}, not to user 0"):
        CertificateAuthority.load_or_create(directory, NOW)


@pytest.mark.root_only
def test_root_reads_the_certificates_of_the_user_that_it_names(directory: Path) -> None:
    authority = CertificateAuthority.load_or_create(directory, NOW)
    for path in (directory, directory / STATE_NAME):
        os.chown(path, STRANGER, STRANGER)
    assert trusted_pem(directory, NOW, owner=STRANGER) == authority.pem(NOW)
    with pytest.raises(AuthorityError, match="belongs to user"):
        trusted_pem(directory, NOW, owner=STRANGER + 1)


@pytest.mark.ordinary_only
def test_a_directory_that_cannot_be_reached_is_not_an_absent_one(directory: Path) -> None:
    CertificateAuthority.load_or_create(directory, NOW)
    directory.parent.chmod(0o600)
    with pytest.raises(AuthorityError, match="Permission denied"):
        trusted_pem(directory, NOW)
    directory.parent.chmod(0o700)


@pytest.mark.ordinary_only
def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AuthorityError, match="cannot make the certificate directory"):
        CertificateAuthority.load_or_create(tmp_path / "x", NOW)
    tmp_path.chmod(0o700)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        CertificateAuthority.load_or_create(tmp_path / name, NOW)
    texts = {name: (tmp_path / name / STATE_NAME).read_text().splitlines() for name in "ab"}
    mixed = [b if '"key"' in b else a for a, b in zip(texts["a"], texts["b"], strict=True)]
    (tmp_path / "a" / STATE_NAME).write_text("\n".join(mixed))
    with pytest.raises(AuthorityError, match="does not belong to its certificate"):
        CertificateAuthority.load_or_create(tmp_path / "a", NOW)


STARTERS = """
import os, sys
from datetime import datetime
from pathlib import Path
from certs.authority import CertificateAuthority
gate, opener = os.pipe()
children = 0
for _ in range(100):
    if os.fork() == 0:
        os.close(opener)
        os.read(gate, 1)
        authority = CertificateAuthority.load_or_create(Path(sys.argv[1]), datetime.fromisoformat(sys.argv[2]))
        os.write(1, authority.id.encode() + b"\\n")
        os._exit(0)
os.close(opener)  # all at once
sys.exit(sum(os.wait()[1] != 0 for _ in range(100)))
"""


def test_a_hundred_processes_at_once_get_one_authority(directory: Path) -> None:
    command = [sys.executable, "-c", STARTERS, str(directory), NOW.isoformat()]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    printed = run.stdout.split()
    assert len(printed) == 100
    assert len(set(printed)) == 1
    assert os.listdir(directory) == [STATE_NAME]


KILLED = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
import certs.store
os.rename = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
from certs.authority import CertificateAuthority
CertificateAuthority.load_or_create(Path(sys.argv[1]), datetime.fromisoformat(sys.argv[2]))
"""


def test_a_killed_first_start_leaves_nothing_that_stays(directory: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(directory), NOW.isoformat()], check=False)
    assert killed.returncode == -9
    assert [name for name in os.listdir(directory) if name != STATE_NAME]
    CertificateAuthority.load_or_create(directory, NOW)
    assert os.listdir(directory) == [STATE_NAME]


def test_the_key_shows_nowhere_and_does_not_travel(directory: Path) -> None:
    authority = CertificateAuthority.load_or_create(directory, NOW)
    shown = repr(authority) + repr(authority._loaded) + repr(LeafCache(authority))
    assert "PRIVATE" not in shown
    assert "EllipticCurvePrivateKey" not in shown
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stays in its process"):
            travel(authority)
    assert b"PRIVATE" not in authority.pem(NOW)


def test_rotation_signs_with_the_new_root_and_trusts_both_until_the_overlap_ends(directory: Path) -> None:
    authority = CertificateAuthority.load_or_create(directory, NOW)
    old, old_pem = authority.signer, authority.pem(NOW)
    authority.rotate(NOW)
    assert authority.signer != old
    assert authority.certificates(NOW) == (authority.signer, old)
    assert authority.certificates(NOW + OVERLAP - timedelta(seconds=1)) == (authority.signer, old)
    assert authority.certificates(NOW + OVERLAP) == (authority.signer,)
    assert trusted_pem(directory, NOW) == authority.pem(NOW) != old_pem
    assert (directory / STATE_NAME).read_text().count("PRIVATE KEY-----") == 2  # one key: its begin and end


@pytest.mark.parametrize("rotations", range(PATH_LENGTH + 1))
def test_a_sandbox_from_before_the_rotations_still_trusts_new_leaves(directory: Path, rotations: int) -> None:
    authority = CertificateAuthority.load_or_create(directory, NOW)
    before = authority.pem(NOW)
    for _ in range(rotations):
        authority.rotate(NOW)
    served = LeafCache(authority).context_for("api.example.com")
    for bundle in {before, authority.pem(NOW)}:
        client = UpstreamTrust(system=False, extra=[bundle]).context_for("api.example.com")
        handshake(client, served, "api.example.com")


def test_a_dropped_root_is_trusted_no_more(directory: Path) -> None:
    authority = CertificateAuthority.load_or_create(directory, NOW)
    authority.rotate(NOW)
    authority.rotate(NOW, overlap=timedelta(0))
    assert authority.certificates(NOW) == (authority.signer,)
    leaf = authority.issue("api.example.com", curve_key().public_key(), NOW)
    assert leaf.chain.count(b"BEGIN CERTIFICATE") == 1


def test_the_bridge_certifies_the_new_key_under_the_old_root_for_the_overlap_only(directory: Path) -> None:
    authority = CertificateAuthority.load_or_create(directory, NOW)
    old = authority.signer
    authority.rotate(NOW)
    leaf = authority.issue("api.example.com", curve_key().public_key(), NOW)
    end, bridge = x509.load_pem_x509_certificates(leaf.chain)
    assert end == leaf.certificate
    bridge.verify_directly_issued_by(old)
    end.verify_directly_issued_by(bridge)
    assert bridge.subject == authority.signer.subject
    assert bridge.public_key() == authority.signer.public_key()
    assert bridge.not_valid_after_utc == NOW + OVERLAP


def test_an_authority_near_its_end_is_renewed_at_the_next_start(directory: Path) -> None:
    first = CertificateAuthority.load_or_create(directory, NOW)
    due = first.signer.not_valid_after_utc - RENEW_BEFORE
    assert trusted_pem(directory, due - DAY) == first.pem(NOW)
    assert trusted_pem(directory, due) is None
    renewed = CertificateAuthority.load_or_create(directory, due)
    assert renewed.certificates(due) == (renewed.signer, first.signer)
    assert first.reload(due)
    assert first.id == renewed.id
    assert not first.reload(due)


def test_after_years_off_an_expired_authority_is_replaced_without_a_trace(directory: Path) -> None:
    CertificateAuthority.load_or_create(directory, NOW)
    later = NOW + ROOT_LIFE + DAY
    authority = CertificateAuthority.load_or_create(directory, later)
    assert authority.certificates(later) == (authority.signer,)


def test_a_clock_before_the_authority_is_said_and_rotation_cures_it(directory: Path) -> None:
    CertificateAuthority.load_or_create(directory, NOW)
    early = NOW - BACKDATE - DAY
    with pytest.raises(AuthorityError, match="the clock says") as refused:
        CertificateAuthority.load_or_create(directory, early)
    assert "certs rotate" in refused.value.cure
    cured = CertificateAuthority.replace(directory, early)
    assert cured.certificates(early) == (cured.signer,)
    assert CertificateAuthority.load_or_create(directory, early).id == cured.id


def test_no_authority_yet_is_no_error(directory: Path) -> None:
    assert trusted_pem(directory, NOW) is None
    directory.mkdir(mode=0o700)
    assert trusted_pem(directory, NOW) is None
