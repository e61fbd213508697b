"""Every refusal, as a table; and the order in which the rules speak."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sandbox.workspace.errors import WorkspaceCode, WorkspaceError
from sandbox.workspace.rules import Facts, ForbiddenRoots, judge
from sandbox.workspace.text import check_name, check_path

CASES = tomllib.loads((Path(__file__).parents[2] / "cases" / "workspaces.toml").read_text())
FORBIDDEN = ForbiddenRoots(
    homes=tuple(map(Path, ("/home/ann", "/home/bob", "/root", "/usr/sbin", "/var/lib/postgresql"))),
    own_home=Path("/home/ann"),
    state=(Path("/var/lib/wicketgate"),),
    databases=(Path("/srv/shop/db/shop.sqlite"), Path("/data/pg")),
    managed=Path("/var/lib/wicketgate/workspaces"),
    identities=(((9, 1), Path("/home/bob")), ((9, 2), Path("/data/pg")), ((9, 3), Path("/var/lib/wicketgate"))),
)
GOOD = Facts(
    path=Path("/srv/app"), identity=(1, 5), ancestors=((1, 3), (1, 2)), owner=1000, mode=0o40755, read_only=False
)


def refusal(facts: Facts, forbidden: ForbiddenRoots = FORBIDDEN, uid: int = 1000) -> str:
    try:
        judge(facts, forbidden, uid)
    except WorkspaceError as error:
        return error.code if error.cause in str(error) and error.cure in str(error) else "no cause or no cure"
    return ""


@pytest.mark.parametrize(("path", "code"), CASES["judge"].items())
def test_a_path_is_judged(path: str, code: str) -> None:
    ancestors = () if path == "/" else GOOD.ancestors
    assert refusal(structs.replace(GOOD, path=Path(path), ancestors=ancestors)) == code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"owner": 0}, WorkspaceCode.NOT_OWNED),
        ({"owner": 65534}, WorkspaceCode.NOT_OWNED),
        ({"mode": 0o40555}, WorkspaceCode.NOT_ACCESSIBLE),
        ({"mode": 0o40077}, WorkspaceCode.NOT_ACCESSIBLE),
        ({"mode": 0o40700}, ""),
        ({"read_only": True}, WorkspaceCode.READ_ONLY),
        ({"mounts_below": (Path("/srv/app/x"),)}, WorkspaceCode.NESTED_MOUNT),
        ({"identity": (9, 1)}, WorkspaceCode.HOME),
        ({"identity": (9, 2)}, WorkspaceCode.DATABASE),
        ({"ancestors": ((9, 2), (1, 2))}, WorkspaceCode.DATABASE),
        ({"ancestors": ((9, 3), (1, 2))}, WorkspaceCode.OWN_STATE),
        ({"protected_below": (Path("/data/pg"),)}, WorkspaceCode.DATABASE),
        ({"protected_below": (Path("/home/bob"),)}, WorkspaceCode.HOME_PARENT),
        ({"identity": (1, 2)}, WorkspaceCode.ROOT),
    ],
)
def test_facts_and_second_mounts_of_forbidden_places_are_judged(change: dict[str, object], code: str) -> None:
    assert refusal(structs.replace(GOOD, **change)) == code  # type: ignore[arg-type]


ORDER = [
    ({"path": Path("/"), "ancestors": ()}, WorkspaceCode.ROOT),
    ({"path": Path("/data/pg")}, WorkspaceCode.DATABASE),
    ({"path": Path("/usr/sbin")}, WorkspaceCode.SYSTEM_ROOT),
    ({"path": Path("/home/.ssh")}, WorkspaceCode.HOME),
    ({"path": Path("/home/ann/.ssh/.git")}, WorkspaceCode.CREDENTIALS),
    ({"path": Path("/home/ann/.x/.git")}, WorkspaceCode.VERSION_CONTROL),
    ({"path": Path("/home/ann/.x")}, WorkspaceCode.HOME_SETTINGS),
    ({}, WorkspaceCode.NESTED_MOUNT),
]


@pytest.mark.parametrize(("change", "code"), ORDER)
def test_the_earlier_rule_speaks_first(change: dict[str, Any], code: str) -> None:
    everything = structs.replace(
        GOOD, owner=0, mode=0o40000, read_only=True, mounts_below=(Path("/srv/app/x"),), **change
    )
    assert refusal(everything) == code


def test_owner_then_rights_then_read_only() -> None:
    facts = structs.replace(GOOD, owner=0, mode=0o40000, read_only=True)
    assert refusal(facts) == WorkspaceCode.NOT_OWNED
    assert refusal(structs.replace(facts, owner=1000)) == WorkspaceCode.NOT_ACCESSIBLE
    assert refusal(structs.replace(facts, owner=1000, mode=0o40700)) == WorkspaceCode.READ_ONLY


def test_a_home_in_a_system_tree_may_hold_workspaces_for_its_own_user_only() -> None:
    facts = structs.replace(GOOD, path=Path("/var/lib/postgresql/project"))
    assert refusal(facts) == WorkspaceCode.SYSTEM_ROOT
    own = structs.replace(FORBIDDEN, own_home=Path("/var/lib/postgresql"))
    assert refusal(facts, own) == ""


@pytest.mark.parametrize(("text", "code"), CASES["text"].items())
def test_a_typed_path_is_judged_as_text(text: str, code: str) -> None:
    if code == "":
        assert check_path(text) == text
        return
    with pytest.raises(WorkspaceError) as caught:
        check_path(text)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["/" + "a" * 256, "/a" * 2100, "/" + "ü" * 128])
def test_a_path_longer_than_linux_allows(text: str) -> None:
    with pytest.raises(WorkspaceError) as caught:
        check_path(text)
    assert caught.value.code is WorkspaceCode.TOO_LONG


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(WorkspaceError) as caught:
        check_path("/a\udcff")
    assert caught.value.code is WorkspaceCode.BAD_CHARACTER


@pytest.mark.parametrize(("name", "code"), [*CASES["name"].items(), ("a" * 65, "bad_name"), ("a" * 64, "")])
def test_a_folder_name_is_judged(name: str, code: str) -> None:
    if code == "":
        assert check_name(name) == name
        return
    with pytest.raises(WorkspaceError) as caught:
        check_name(name)
    assert caught.value.code == code
