"""What may be run inside, judged before anything is made."""

from pathlib import Path

import pytest

from sandbox.errors import Code, LaunchError
from sandbox.host import FILTERS, find_command, look_at_host, read_filter
from sandbox.seccomp import Architecture, committed


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sh", None),
        ("/bin/sh", None),
        ("/usr/bin/env", None),
        ("/usr/bin/../bin/sh", None),
        ("./script", None),
        ("plain", Code.COMMAND_NOT_FOUND),  # the workspace is not in PATH
        ("{workspace}/script", None),
        ("sub/../script", None),
        ("./odd", Code.COMMAND_NOT_FOUND),
        ("./plain", Code.COMMAND_NOT_EXECUTABLE),
        ("./sub", Code.COMMAND_NOT_EXECUTABLE),
        ("../outside", Code.COMMAND_NOT_FOUND),
        ("./../outside", Code.COMMAND_NOT_FOUND),
        ("./nosuch", Code.COMMAND_NOT_FOUND),
        ("", Code.COMMAND_NOT_FOUND),
        ("nosuch", Code.COMMAND_NOT_FOUND),
        ("/root/program", Code.COMMAND_NOT_FOUND),
        ("/usr", Code.COMMAND_NOT_EXECUTABLE),
        ("/usr/../root/program", Code.COMMAND_NOT_FOUND),
    ],
)
def test_find_command(name: str, code: Code | None, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    (workspace / "sub").mkdir(parents=True)
    for path, text in {"script": "#!/bin/sh\n", "odd": "#!/opt/nosuch/python -u\n", "plain": "#!/bin/sh\n"}.items():
        (workspace / path).write_text(text)
        (workspace / path).chmod(0o644 if path == "plain" else 0o755)
    (tmp_path / "outside").write_text("#!/bin/sh\n")
    (tmp_path / "outside").chmod(0o755)
    typed = name.replace("{workspace}", str(workspace))
    if code is None:
        find_command(typed, workspace)
        return
    with pytest.raises(LaunchError) as raised:
        find_command(typed, workspace)
    assert raised.value.code is code
    assert raised.value.cause.endswith(".")
    assert raised.value.cure.endswith(".")


def test_a_relative_command_without_a_workspace_is_not_found() -> None:
    with pytest.raises(LaunchError) as raised:
        find_command("./x", None)
    assert raised.value.code is Code.COMMAND_NOT_FOUND


@pytest.mark.parametrize("architecture", list(Architecture))
def test_the_filter_of_each_machine_is_the_committed_one(architecture: Architecture) -> None:
    assert read_filter(architecture.value) == committed(architecture)


@pytest.mark.parametrize("machine", ["i686", "riscv64", "", "../seccomp/x86_64.log", "x86_64.log"])
def test_another_machine_is_refused_and_never_gets_the_log_filter(machine: str) -> None:
    with pytest.raises(LaunchError, match="aarch64, x86_64") as raised:
        read_filter(machine)
    assert raised.value.code is Code.UNSUPPORTED_MACHINE


def test_the_launcher_is_opened_once_and_is_no_link() -> None:
    host = look_at_host()
    assert host.bwrap_fd > 2
    assert len(host.seccomp) % 8 == 0
    assert len(host.seccomp) > 800
    assert (FILTERS / "x86_64.bpf").is_file()
