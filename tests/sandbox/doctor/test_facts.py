"""What is read off /proc, from texts that kernels really print."""

from pathlib import Path

import pytest

from sandbox.doctor.facts import apparmor_label, is_mapped, look, masked

DOCKER = """\
507 482 0:64 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
529 507 0:64 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
536 507 0:70 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
"""
SYSTEMD = """\
22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
35 22 0:31 / /proc/sys/fs/binfmt_misc rw,relatime shared:16 - autofs systemd-1 rw,fd=30
36 22 0:32 / /proc/fs/nfsd rw,relatime - nfsd nfsd rw
"""


@pytest.mark.parametrize(
    ("text", "found"), [(DOCKER, ("/proc/bus", "/proc/kcore")), (SYSTEMD, ()), ("", ()), ("broken\n", ())]
)
def test_masks(text: str, found: tuple[str, ...]) -> None:
    assert masked(text) == found


@pytest.mark.parametrize(
    ("text", "uid", "answer"),
    [
        ("         0          0 4294967295\n", 64321, True),
        ("         0       1000          1\n         1     100000      65536\n", 64321, True),
        ("         0       1000          1\n", 64321, False),
        ("      1000       1000          1\n", 0, False),
        ("", 5, True),
    ],
)
def test_mapped_ids(text: str, uid: int, answer: bool) -> None:
    assert is_mapped(text, uid) is answer


@pytest.mark.parametrize(
    ("content", "label"),
    [
        (b"docker-default (enforce)\n\0", "docker-default (enforce)"),
        (b"unconfined\n", "unconfined"),
        (b"system_u:system_r:container_t:s0\0", ""),  # SELinux's, which is no profile
        (b"", ""),
    ],
)
def test_labels(tmp_path: Path, content: bytes, label: str) -> None:
    (tmp_path / "self/attr").mkdir(parents=True)
    (tmp_path / "self/attr/current").write_bytes(content)
    assert apparmor_label(tmp_path) == label


def test_a_proc_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    facts = look(tmp_path)
    assert (facts.filtered, facts.masked, dict(facts.sysctls), facts.mapped) == (False, (), {}, True)
