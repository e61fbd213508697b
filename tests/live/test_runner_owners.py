"""Workspaces that do not belong to the serving user: the runner writes in none of them, whatever their mode allows.

A file of the owner's could not be protected there, and what the payload makes could not be set aside for sure. What an
administrator can do instead is shown to work.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.runners import Daemon, daemon, serving_uid
from wicketgate.runner.client import Authority, Call, RunnerError

pytestmark = [pytest.mark.live, pytest.mark.root_only]
OTHER = 4242
LEND = (
    "import os, sys; from pathlib import Path; from sandbox.ownership import lend_workspace;"
    "uid = int(sys.argv[2]); lend_workspace(Path(sys.argv[1]), uid=uid, gid=uid); os.execv(sys.argv[3], sys.argv[3:])"
)


def own(path: Path, uid: int, gid: int, mode: int) -> None:
    os.chown(path, uid, gid)
    path.chmod(mode)


def roots(path: Path) -> None:
    own(path, 0, 0, 0o755)


def roots_open_to_everybody(path: Path) -> None:
    own(path, 0, 0, 0o777)


def a_shared_group(path: Path) -> None:
    own(path, OTHER, serving_uid(), 0o2770)


def an_access_list(path: Path) -> None:
    """u::rwx u:SERVING:rwx g::--- m::rwx o::--- (acl(5), linux/posix_acl_xattr.h)."""
    own(path, OTHER, OTHER, 0o700)
    rows = ((1, 7, -1), (2, 7, serving_uid()), (4, 0, -1), (16, 7, -1), (32, 0, -1))
    packed = b"".join(struct.pack("<HHI", tag, rights, number & 0xFFFFFFFF) for tag, rights, number in rows)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="wicketgate-owned-"))
    made.chmod(0o755)
    workspace = made / "work"
    workspace.mkdir()
    yield workspace
    shutil.rmtree(made)


def serving_user_can_write(path: Path) -> bool:
    words = ["/usr/bin/touch", str(path / "probe")]
    uid = serving_uid()
    done = subprocess.run(words, check=False, capture_output=True, user=uid, group=uid, extra_groups=[])
    (path / "probe").unlink(missing_ok=True)
    return done.returncode == 0


@pytest.mark.parametrize(
    ("make", "could"),
    [(roots, False), (roots_open_to_everybody, True), (a_shared_group, True), (an_access_list, True)],
)
async def test_anothers_directory_is_refused_with_its_owner_and_a_cure(
    served: Daemon, place: Path, make: Callable[[Path], None], could: bool
) -> None:
    make(place)
    assert serving_user_can_write(place) is could, "the oracle: what the mode alone would have allowed"
    async with served.client() as runner:
        for attempt in (
            lambda: runner.check_workspace(str(place)),
            lambda: runner.check_workspace(str(place), user="somebody"),
            lambda: runner.run(Call(bash="echo x >made"), Authority(workspace=str(place))),
            lambda: runner.start_job(Call(bash="echo x >made"), Authority(workspace=str(place))),
            lambda: runner.open_session(Authority(workspace=str(place))),
            lambda: runner.open_terminal(authority=Authority(workspace=str(place))),
        ):
            with pytest.raises(RunnerError) as refused:
                await attempt()
            assert (refused.value.code, refused.value.problem.reason) == ("bad_workspace", "not_owned")
            uid = serving_uid()
            assert f"belongs to another user, and the server runs as user {uid}" in refused.value.detail
            assert f"chown -R {uid}" in refused.value.detail
        done = await runner.run(Call(bash="pwd"), Authority(user="somebody"))
        assert done.stdout == b"/home/sandbox\n", "it was not remembered either"
    assert list(place.iterdir()) == []


async def test_behind_a_closed_door(served: Daemon, place: Path) -> None:
    own(place, serving_uid(), serving_uid(), 0o700)
    place.parent.chmod(0o700)
    async with served.client() as runner:
        with pytest.raises(RunnerError) as refused:
            await runner.run(Call(bash="true"), Authority(workspace=str(place)))
        assert refused.value.problem.reason == "not_reachable"
        assert "give the serving user the right to enter it" in refused.value.detail


async def test_what_belongs_to_others_inside_keeps_its_protection(served: Daemon, place: Path) -> None:
    own(place, serving_uid(), serving_uid(), 0o755)
    for name, mode in (("theirs", 0o600), ("shown", 0o644)):
        (place / name).write_text(name)
        own(place / name, OTHER, OTHER, mode)
    async with served.client() as runner:
        script = "cat theirs; echo more >>shown; cat shown; chmod 777 shown; echo made >made"
        done = await runner.run(Call(bash=script), Authority(workspace=str(place)))
        assert done.stdout == b"shown", done
    assert (place / "shown").stat().st_uid == OTHER
    assert (place / "made").stat().st_uid == serving_uid()


async def test_a_mount_that_shows_the_owner_as_the_serving_user_is_used(place: Path) -> None:
    """An id-mapped mount (mount_setattr(2)), made by an administrator: everything made there is the owner's."""
    own(place, OTHER, OTHER, 0o700)
    with daemon(prefix=(sys.executable, "-c", LEND, str(place), str(serving_uid()))) as made:
        async with made.client() as runner:
            done = await runner.run(Call(bash="echo x >made; stat -c %u ."), Authority(workspace=str(place)))
            assert done.stdout == b"1000\n", done
    assert (place / "made").stat().st_uid == OTHER
    assert place.stat().st_uid == OTHER
