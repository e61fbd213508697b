"""The mounts of a surveyed workspace: order, pins, what covers what. Pure."""

from pathlib import Path

from sandbox.plan import Bind, Operation, ReadOnly, Tmpfs
from sandbox.protect import Survey, operations

W = Path("/w")


def shown(steps: tuple[Operation, ...]) -> list[str]:
    lines = []
    for step in steps:
        match step:
            case Bind():
                lines.append(
                    f"{'rw' if step.writable else 'ro'} {step.destination}"
                    + (f" from {step.source}" if step.source != step.destination else "")
                )
            case Tmpfs():
                lines.append(f"tmpfs {step.destination} {step.mode:o}")
            case ReadOnly():
                lines.append(f"lock {step.destination}")
            case _:
                raise AssertionError(step)
    return lines


def test_nothing_found_nothing_mounted() -> None:
    assert operations(W, Survey()) == ()


def test_every_directory_above_a_frozen_path_is_pinned_outermost_first() -> None:
    found = Survey(git_directories=("a/b/.git",), frozen=("a/b/.git/config", "a/b/.git/hooks"))
    assert shown(operations(W, found)) == [
        "rw /w/a",
        "rw /w/a/b",
        "rw /w/a/b/.git",
        "ro /w/a/b/.git/config",
        "ro /w/a/b/.git/hooks",
    ]


def test_a_repository_without_any_frozen_part_is_pinned_all_the_same() -> None:
    assert shown(operations(W, Survey(git_directories=(".git",)))) == ["rw /w/.git"]


def test_what_lies_in_a_frozen_directory_needs_no_mount_and_is_never_made_writable() -> None:
    found = Survey(git_directories=(".vscode/x/.git",), frozen=(".vscode", ".vscode/x/.git/config"))
    assert shown(operations(W, found)) == ["ro /w/.vscode"]


def test_held_names_are_covered_last() -> None:
    found = Survey(git_directories=("s/.git",))
    assert shown(operations(W, found, held=(".git", ".vscode", "s/.git/hooks"))) == [
        "rw /w/s",
        "rw /w/s/.git",
        "tmpfs /w/.git 700",
        "tmpfs /w/.vscode 555",
        "lock /w/.vscode",
        "tmpfs /w/s/.git/hooks 555",
        "lock /w/s/.git/hooks",
    ]


def test_a_private_repository_is_bound_over_the_held_name() -> None:
    assert shown(operations(W, Survey(), held=(".git",), private_git=Path("/s/g"))) == ["rw /w/.git from /s/g"]


def test_the_workspace_itself_as_a_bare_repository_is_frozen_in_place() -> None:
    found = Survey(git_directories=("",), frozen=("config", "hooks"))
    assert shown(operations(W, found)) == ["ro /w/config", "ro /w/hooks"]
