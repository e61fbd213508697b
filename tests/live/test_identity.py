"""Who the processes are, as the kernel of the host sees them, and who owns what they write."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns import kernel
from tests.live.runs import descendants, find, inside, line, name, running, status, until, wicketgate
from wicketgate.identity import serving_identity

pytestmark = pytest.mark.live
CABLE = ("--allow", "origin.example")
SLEEP = ("--", "sh", "-c", "echo up; exec sleep 4321")
NO_CAPABILITIES = "0000000000000000"
NAMESPACES = ("user", "net", "pid", "mnt", "ipc", "uts", "cgroup")


@pytest.fixture(scope="module")
def live() -> Iterator[dict[str, int]]:
    """The pids of a run with a cable, by role."""
    with running(*CABLE, *SLEEP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert line(run.stdout) == "up"
        payload = until(lambda: find(run.pid, "sleep"))
        below = descendants(run.pid)
        broker = next(pid for pid in below if name(pid) not in {"bwrap", "sleep"})
        outer, inner = (pid for pid in below if name(pid) == "bwrap")
        yield {"front": run.pid, "broker": broker, "outer": outer, "inner": inner, "payload": payload}


@pytest.mark.parametrize("role", ["front", "broker", "outer", "inner", "payload"])
def test_no_process_is_root_or_another_user(live: dict[str, int], role: str) -> None:
    told = status(live[role])
    identity = serving_identity()
    assert set(told["Uid"].split()) == {str(identity.uid)} != {"0"}
    assert set(told["Gid"].split()) == {str(identity.gid)}
    if os.geteuid() == 0:
        assert told["Groups"] == ""


@pytest.mark.parametrize("role", ["broker", "payload"])
@pytest.mark.parametrize("kind", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_broker_and_payload_have_no_capability(live: dict[str, int], role: str, kind: str) -> None:
    assert status(live[role])[kind] == NO_CAPABILITIES


@pytest.mark.parametrize("role", ["broker", "payload"])
def test_broker_and_payload_can_gain_no_privilege(live: dict[str, int], role: str) -> None:
    assert status(live[role])["NoNewPrivs"] == "1"
    assert role == "broker" or status(live[role])["Seccomp"] == "2"


def test_nothing_inside_maps_to_root(live: dict[str, int]) -> None:
    rows = Path(f"/proc/{live['payload']}/uid_map").read_text().split()
    assert rows == ["1000", str(serving_identity().uid), "1"]


def test_the_payload_shares_no_namespace_with_us(live: dict[str, int]) -> None:
    for kind in NAMESPACES:
        theirs = os.stat(f"/proc/{live['payload']}/ns/{kind}").st_ino
        assert theirs != os.stat(f"/proc/self/ns/{kind}").st_ino, kind


def attempts_from_a_neighbour(target: int) -> dict[str, str]:
    """What a process that stands where the broker stands, but with every capability there, gets from setns(2)."""
    descriptors = {kind: os.open(f"/proc/{target}/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES}
    reader, writer = os.pipe()
    if os.fork() == 0:
        serving_identity().become()
        kernel.enter_user_namespace()
        for kind, descriptor in descriptors.items():
            try:
                os.setns(descriptor)
                os.write(writer, f"{kind} entered\n".encode())
            except OSError as error:
                os.write(writer, f"{kind} {error.strerror}\n".encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    with os.fdopen(reader) as told:
        found = dict(row.rstrip().split(" ", 1) for row in told)
    for descriptor in descriptors.values():
        os.close(descriptor)
    return found


@pytest.mark.parametrize("role", ["outer", "payload"])
def test_the_brokers_place_gives_no_right_over_the_sandbox(live: dict[str, int], role: str) -> None:
    assert set(attempts_from_a_neighbour(live[role]).values()) == {"Operation not permitted"}


def test_the_oracle_enters_where_the_broker_cannot(live: dict[str, int]) -> None:
    """The owner of the sandbox's user namespace may: the refusals above are not for want of a target."""
    enter = ["nsenter", "-t", str(live["outer"]), "--user", "--preserve-credentials", "--net", "true"]
    assert subprocess.run(enter, check=False).returncode == 0


# ---- the workspace ---------------------------------------------------------------------------------------------------

WRITES = (
    "umask 022; echo made > made; mkdir dir; echo deep > dir/deep; ln -s made link; ln made hard; mkfifo pipe;"
    " echo more >> old; rm gone; mv moved dir/; chmod 700 made; cp /usr/bin/true program; ./program && cat old"
)


def fill(workspace: Path) -> None:
    for old in ("old", "gone", "moved"):
        (workspace / old).write_text(f"{old}\n")


@pytest.mark.parametrize("words", [(), CABLE], ids=["alone", "with a cable"])
def test_what_is_made_in_the_workspace_belongs_to_its_owner(words: tuple[str, ...], tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    fill(workspace)
    owner = (workspace.stat().st_uid, workspace.stat().st_gid)
    assert inside(WRITES, *words, "--workspace", str(workspace)) == "old\nmore\n"
    made = {str(path.relative_to(workspace)): path.lstat() for path in workspace.rglob("*")}
    assert set(made) == {"made", "dir", "dir/deep", "dir/moved", "link", "hard", "pipe", "old", "program"}
    assert {(found.st_uid, found.st_gid) for found in made.values()} == {owner}
    assert made["made"].st_ino == made["hard"].st_ino


def test_inside_the_workspace_is_the_users_own(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "old").write_text("x")
    assert inside("stat -c %u:%g . old", "--workspace", str(workspace)).split() == ["1000:1000"] * 2
    assert Path(inside("pwd", "--workspace", str(workspace)).strip()) == workspace


@pytest.mark.root_only
@pytest.mark.parametrize(("uid", "mode"), [(0, 0o700), (0, 0o755), (12345, 0o700)])
def test_root_lends_a_workspace_behind_closed_doors(uid: int, mode: int, tmp_path: Path) -> None:
    """A private directory on the way, as below a home: neither it nor what lies beside the workspace is shown."""
    closed = tmp_path / "closed"
    workspace = closed / "deep" / "work"
    workspace.mkdir(parents=True)
    (closed / "neighbour").write_text("not shown")
    fill(workspace)
    for path in (workspace, *workspace.iterdir()):
        os.chown(path, uid, uid)
    workspace.chmod(mode)
    closed.chmod(0o700)
    told = inside(f"{WRITES}; ls -a {closed}; cat ../../neighbour || :", "--workspace", str(workspace))
    assert "neighbour" not in told
    assert "not shown" not in told
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in workspace.rglob("*")} == {(uid, uid)}
    assert (closed.stat().st_uid, stat.S_IMODE(closed.stat().st_mode)) == (0, 0o700)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.root_only
def test_files_of_others_keep_their_protection(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    for owner in (4242, serving_identity().uid):
        path = workspace / str(owner)
        path.write_text("theirs")
        os.chown(path, owner, owner)
        path.chmod(0o600)
    done = wicketgate("--workspace", str(workspace), "--", "sh", "-c", "cat 4242; cat 64*; echo x >> 4242; true")
    assert done.stdout == b""
    assert (workspace / "4242").read_text() == "theirs"


PLANTS = """
import ctypes, os, stat
def attempt(what, act):
    try:
        act()
    except OSError as error:
        print(what, "refused", error.errno)
    else:
        print(what, "done")
open("plain", "w").close()
attempt("chmod u+s", lambda: os.chmod("plain", 0o4755))
attempt("chmod g+s", lambda: os.chmod("plain", 0o2755))
attempt("fchmod", lambda: os.fchmod(os.open("plain", os.O_RDWR), 0o6755))
attempt("open", lambda: os.open("planted", os.O_CREAT | os.O_WRONLY, 0o4755))
attempt("mknod file", lambda: os.mknod("planted2", stat.S_IFREG | 0o4755))
attempt("mknod char", lambda: os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
attempt("mknod block", lambda: os.mknod("disk", stat.S_IFBLK | 0o666, os.makedev(254, 0)))
attempt("chown", lambda: os.chown("plain", 0, 0))
attempt("capability", lambda: os.setxattr("plain", "security.capability", bytes.fromhex("01000002" + "00" * 16)))
"""


def test_no_set_id_file_and_no_device_can_be_planted(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "plants.py").write_text(PLANTS)
    told = inside("/usr/bin/python3 plants.py", "--workspace", str(workspace)).splitlines()
    assert len(told) == 9
    assert not [row for row in told if row.endswith("done")]
    for path in workspace.rglob("*"):
        mode = path.lstat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path
        assert not stat.S_ISCHR(mode), path
        assert not stat.S_ISBLK(mode), path
        assert "security.capability" not in os.listxattr(path)


def test_every_mount_ignores_set_id_bits_and_devices() -> None:
    rows = [row.split() for row in inside("cat /proc/self/mounts").splitlines()]
    for _source, place, kind, options, *_ in rows:
        assert "nosuid" in options.split(","), (place, options)
        # The six device nodes are bound one by one, and devpts is made of them.
        assert "nodev" in options.split(",") or place.startswith("/dev/") or kind == "devpts", (place, options)


@pytest.mark.root_only
def test_an_existing_set_id_program_gives_nothing(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    program = workspace / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o6755)
    assert inside("./id -u; ./id -ru", "--workspace", str(workspace)).split() == ["1000", "1000"]


@pytest.mark.root_only
def test_a_file_system_without_owners_is_named(tmp_path: Path) -> None:
    """A fresh mount namespace with a private 9p, overlay or other such file system is rare; proc stands for them."""
    script = (
        "from pathlib import Path; from sandbox.ownership import lend_workspace;"
        "lend_workspace(Path('/proc/sys/kernel'), uid=64321, gid=64321)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert b"cannot write there: its file system cannot show other owners" in done.stderr
    assert b"chown -R 64321:64321" in done.stderr
