"""Directories of this machine: links, exchanges, contents made to lock a user out, the managed root, the choice."""

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from sandbox.workspace import (
    ForbiddenRoots,
    Workspace,
    WorkspaceCode,
    WorkspaceError,
    choose_workspace,
    create_workspace,
    forbidden_roots,
    forget_choice,
    list_workspaces,
    recall_choice,
    validate_workspace,
)
from sandbox.workspace.inspect import unescape

UID = os.geteuid()
NOTHING = ForbiddenRoots()


def refusal(path: object, forbidden: ForbiddenRoots = NOTHING, **options: bool) -> WorkspaceCode:
    with pytest.raises(WorkspaceError) as caught:
        validate_workspace(str(path), forbidden=forbidden, uid=UID, **options)
    return caught.value.code


def test_a_workspace_is_its_canonical_path_and_identity(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = validate_workspace(f"{tmp_path}//a/../a/.", forbidden=NOTHING, uid=UID)
    status = (tmp_path / "a").stat()
    assert found == Workspace(path=tmp_path / "a", device=status.st_dev, inode=status.st_ino)


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert refusal(tmp_path / "file") is WorkspaceCode.NOT_A_DIRECTORY
    assert refusal(tmp_path / "fifo") is WorkspaceCode.NOT_A_DIRECTORY
    assert refusal(tmp_path / "file" / "x") is WorkspaceCode.NOT_A_DIRECTORY
    assert refusal(tmp_path / "absent") is WorkspaceCode.NOT_FOUND
    assert refusal(tmp_path / "dangling") is WorkspaceCode.NOT_FOUND
    assert refusal(tmp_path / "loop") is WorkspaceCode.SYMLINK


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "etc").symlink_to("/etc")
    assert validate_workspace(tmp_path / "link", forbidden=NOTHING, uid=UID).path == tmp_path / "real"
    assert refusal(tmp_path / "link", follow_symlinks=False) is WorkspaceCode.SYMLINK
    assert refusal(tmp_path / "etc") is WorkspaceCode.SYSTEM_ROOT
    assert refusal(f"{tmp_path}/etc/../usr") is WorkspaceCode.SYSTEM_ROOT
    assert refusal(f"/proc/{os.getpid()}/root") is WorkspaceCode.SYMLINK


def test_a_link_must_not_lead_out_of_the_managed_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (root / "inside").mkdir()
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "in").symlink_to("inside")
    managed = ForbiddenRoots(managed=root)
    assert refusal(root / "out", managed) is WorkspaceCode.SYMLINK
    assert validate_workspace(root / "in", forbidden=managed, uid=UID).path == root / "inside"


def test_databases_and_state_are_found_by_identity_and_before_they_exist(tmp_path: Path) -> None:
    store = tmp_path / "app" / "db" / "app.sqlite"
    (tmp_path / "app" / "web").mkdir(parents=True)
    forbidden = forbidden_roots(uid=UID, state=[tmp_path / "state"], databases=[store])
    assert refusal(tmp_path / "app", forbidden) is WorkspaceCode.DATABASE
    assert refusal(tmp_path, forbidden) is WorkspaceCode.DATABASE
    assert validate_workspace(tmp_path / "app" / "web", forbidden=forbidden, uid=UID).path.name == "web"
    (tmp_path / "state").mkdir()
    assert refusal(tmp_path / "state", forbidden) is WorkspaceCode.OWN_STATE


def test_the_serving_users_home_is_no_workspace() -> None:
    forbidden = forbidden_roots(uid=UID)
    for home in forbidden.homes:
        if os.access(home, os.X_OK):
            assert refusal(home, forbidden) in {
                WorkspaceCode.HOME,
                WorkspaceCode.SYSTEM_ROOT,
                WorkspaceCode.NOT_REACHABLE,
            }


def test_a_directory_of_another_user() -> None:
    with pytest.raises(WorkspaceError) as caught:
        validate_workspace("/tmp/..//tmp/.", forbidden=NOTHING, uid=UID)
    assert caught.value.code is WorkspaceCode.SYSTEM_ROOT


def test_another_owner_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=f"belongs to user {UID}, and the server runs as user {UID + 1}"):
        validate_workspace(tmp_path, forbidden=NOTHING, uid=UID + 1)


def test_rights_are_needed(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir(mode=0o500)
    assert refusal(tmp_path / "w") is WorkspaceCode.NOT_ACCESSIBLE


def test_an_exchanged_directory_is_not_opened(tmp_path: Path) -> None:
    place = tmp_path / "w"
    place.mkdir()
    workspace = validate_workspace(place, forbidden=NOTHING, uid=UID)
    with workspace.opened() as descriptor:
        assert os.fstat(descriptor).st_ino == workspace.inode
    place.rename(tmp_path / "old")
    (tmp_path / "other").mkdir()
    place.symlink_to("other")
    with pytest.raises(WorkspaceError) as caught, workspace.opened():
        pass
    assert caught.value.code is WorkspaceCode.SYMLINK
    place.unlink()
    place.mkdir()
    with pytest.raises(WorkspaceError) as caught, workspace.opened():
        pass
    assert caught.value.code is WorkspaceCode.CHANGED


def test_nothing_that_a_payload_makes_locks_its_user_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("x")
    os.link(tmp_path / "file", tmp_path / "hard")
    for name in (".ssh", ".git", ".gnupg", "objects", "refs", "a\nb", "\udcff", "-rf"):
        (tmp_path / name).mkdir()
    (tmp_path / "HEAD").write_text("ref: refs/heads/x")
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "loop").symlink_to("loop")
    deep, depth = os.open(tmp_path, os.O_RDONLY), 0
    while depth < 3000:
        os.mkdir("d", dir_fd=deep)
        deeper = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep, depth = deeper, depth + 1
    os.close(deep)
    try:
        assert validate_workspace(tmp_path, forbidden=NOTHING, uid=UID).path == tmp_path
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # too deep for the test runner's own cleaning


def test_mountinfo_escapes() -> None:
    assert unescape(r"/a\040b\134c\011") == "/a b\\c\t"


@pytest.fixture
def managed(tmp_path: Path) -> ForbiddenRoots:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    return ForbiddenRoots(managed=root)


def creation_refusal(name: str, forbidden: ForbiddenRoots) -> WorkspaceCode:
    with pytest.raises(WorkspaceError) as caught:
        create_workspace(name, forbidden=forbidden, uid=UID)
    return caught.value.code


def test_a_folder_is_made_private_and_listed(managed: ForbiddenRoots) -> None:
    made = create_workspace("b-1", forbidden=managed, uid=UID)
    create_workspace("a", forbidden=managed, uid=UID)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert managed.managed is not None
    (managed.managed / "link").symlink_to("a")
    (managed.managed / "file").write_text("")
    (managed.managed / ".hidden").mkdir()
    assert list_workspaces(forbidden=managed, uid=UID) == ("a", "b-1")
    assert creation_refusal("a", managed) is WorkspaceCode.EXISTS


@pytest.mark.parametrize("name", ["..", "a/b", "CVS", "_darcs", "a\x00b", ""])
def test_a_folder_is_never_made_elsewhere(managed: ForbiddenRoots, name: str) -> None:
    assert creation_refusal(name, managed) is WorkspaceCode.BAD_NAME
    assert managed.managed is not None
    assert os.listdir(managed.managed) == []


def test_a_link_in_place_of_the_folder_is_not_followed(managed: ForbiddenRoots, tmp_path: Path) -> None:
    assert managed.managed is not None
    (tmp_path / "victim").mkdir()
    (managed.managed / "x").symlink_to(tmp_path / "victim")
    assert creation_refusal("x", managed) is WorkspaceCode.EXISTS
    assert os.listdir(tmp_path / "victim") == []


def test_a_root_that_others_may_write_or_that_is_a_link_is_refused(managed: ForbiddenRoots, tmp_path: Path) -> None:
    assert managed.managed is not None
    managed.managed.chmod(0o777)
    assert creation_refusal("x", managed) is WorkspaceCode.BAD_MANAGED_ROOT
    managed.managed.chmod(0o700)
    (tmp_path / "link").symlink_to(managed.managed)
    assert creation_refusal("x", ForbiddenRoots(managed=tmp_path / "link")) is WorkspaceCode.BAD_MANAGED_ROOT
    assert creation_refusal("x", ForbiddenRoots(managed=tmp_path / "absent")) is WorkspaceCode.BAD_MANAGED_ROOT
    assert creation_refusal("x", NOTHING) is WorkspaceCode.BAD_MANAGED_ROOT


def test_a_refused_folder_is_taken_away_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    forbidden = ForbiddenRoots(managed=root, databases=(root / "x" / "db",))
    assert creation_refusal("x", forbidden) is WorkspaceCode.DATABASE
    assert os.listdir(root) == []


USERS = ["ann", "ann@example.com", "../../etc/passwd", "", "a" * 5000, "日本\n"]


def test_a_choice_is_remembered_per_user_and_judged_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for index, user in enumerate(USERS):
        place = tmp_path / f"w{index}"
        place.mkdir()
        choose_workspace(str(place), user=user, state=state, forbidden=NOTHING, uid=UID)
        choose_workspace(str(place), user=user, state=state, forbidden=NOTHING, uid=UID)
    for index, user in enumerate(USERS):
        found = recall_choice(user=user, state=state, forbidden=NOTHING, uid=UID)
        assert found is not None
        assert found.path == tmp_path / f"w{index}"
    files = list((state / "workspaces").iterdir())
    assert len(files) == len(USERS)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    later = ForbiddenRoots(databases=(tmp_path / "w0" / "db",))
    with pytest.raises(WorkspaceError) as caught:
        recall_choice(user="ann", state=state, forbidden=later, uid=UID)
    assert caught.value.code is WorkspaceCode.DATABASE
    forget_choice(user="ann", state=state)
    forget_choice(user="ann", state=state)
    assert recall_choice(user="ann", state=state, forbidden=NOTHING, uid=UID) is None


def test_a_refused_choice_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    choose_workspace(str(tmp_path / "w"), user="ann", state=tmp_path, forbidden=NOTHING, uid=UID)
    with pytest.raises(WorkspaceError):
        choose_workspace("/etc", user="ann", state=tmp_path, forbidden=NOTHING, uid=UID)
    found = recall_choice(user="ann", state=tmp_path, forbidden=NOTHING, uid=UID)
    assert found is not None
    assert found.path == tmp_path / "w"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":2}', b'{"version":1,"user":"bob","path":"/x"}', b"\xff", b"[" * 9000]
)
def test_a_broken_or_foreign_file_is_no_choice(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").mkdir()
    choose_workspace(str(tmp_path / "w"), user="ann", state=tmp_path, forbidden=NOTHING, uid=UID)
    (file,) = (tmp_path / "workspaces").iterdir()
    file.write_bytes(content)
    assert recall_choice(user="ann", state=tmp_path, forbidden=NOTHING, uid=UID) is None
    file.unlink()
    os.mkfifo(file)
    assert recall_choice(user="ann", state=tmp_path, forbidden=NOTHING, uid=UID) is None
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert recall_choice(user="ann", state=tmp_path, forbidden=NOTHING, uid=UID) is None


def test_errno_names_are_not_shown_raw() -> None:
    with pytest.raises(WorkspaceError) as caught:
        validate_workspace("/nonexistent-place", forbidden=NOTHING, uid=UID)
    assert os.strerror(errno.ENOENT) not in str(caught.value)


def test_the_root_for_workspaces_is_kept_apart_from_what_is_ours(tmp_path: Path) -> None:
    """What lies below it is exempt from the rules about state, so that it must not be, hold or lie in any."""
    state, store = tmp_path / "wicketgate", tmp_path / "data/app.db"
    for place in (state / "jobs", state / "workspaces/team", store.parent, tmp_path / "work"):
        place.mkdir(parents=True)
    store.touch()
    (tmp_path / "alias").symlink_to(state)

    for managed in (state, state / "jobs", state / "new", state / "workspaces/team", tmp_path, tmp_path / "alias"):
        with pytest.raises(WorkspaceError, match="which no command may reach") as refused:
            forbidden_roots(uid=UID, state=[state], databases=[store], managed=managed)
        assert refused.value.code is WorkspaceCode.BAD_MANAGED_ROOT
    with pytest.raises(WorkspaceError):
        forbidden_roots(uid=UID, databases=[store], managed=store.parent)
    with pytest.raises(WorkspaceError):
        forbidden_roots(uid=UID, databases=[store.parent], managed=store.parent / "workspaces")

    for managed in (state / "workspaces", tmp_path / "work", tmp_path / "not-yet", tmp_path / "alias/workspaces"):
        assert forbidden_roots(uid=UID, state=[state], databases=[store], managed=managed).managed is not None
