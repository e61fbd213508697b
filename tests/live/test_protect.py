"""A payload tries to leave something in its workspace that runs on the host; the workspace keeps no trace of us.

Each attack is made by a real payload under bubblewrap with the mounts of a plan, and judged by a real git on the host.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.plan import Bind, Operation, ReadOnly, Tmpfs
from sandbox.protect import Finding, MountsDifferError, Survey, hold, operations, settle, survey, verify

pytestmark = [pytest.mark.live, pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")]
ROOT = Path(__file__).parents[2]
IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", **IDENTITY}


def git(where: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(["git", "-C", where, *words], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def words(steps: tuple[Operation, ...]) -> list[str]:
    found: list[str] = []
    for step in steps:
        match step:
            case Bind():
                found += ["--bind" if step.writable else "--ro-bind", str(step.source), str(step.destination)]
            case Tmpfs():
                found += ["--perms", f"{step.mode:o}", "--size", str(step.size), "--tmpfs", str(step.destination)]
            case ReadOnly():
                found += ["--remount-ro", str(step.destination)]
            case _:
                raise AssertionError(step)
    return found


class Session:
    """One session on a workspace, with the steps in the order that the package prescribes."""

    def __init__(self, workspace: Path, state: Path, *, private_git: Path | None = None) -> None:
        self.workspace = workspace
        self.root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
        self.before: Survey = survey(self.root)
        self.hold = hold(self.root, self.before, state=state)
        self.mounts = operations(workspace, self.before, held=self.hold.held, private_git=private_git)
        self.findings: tuple[Finding, ...] = ()

    def command(self, script: str) -> list[str]:
        place = str(self.workspace)
        base = [
            "bwrap",
            "--unshare-all",
            "--die-with-parent",
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
        ]
        base += ["--tmpfs", "/var/tmp", "--bind", place, place, *words(self.mounts), "--chdir", place, "--clearenv"]
        for name, value in ENVIRONMENT.items():
            base += ["--setenv", name, value]
        return [*base, "--", "bash", "-c", script]

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(script), capture_output=True, text=True, timeout=60, check=False)

    def end(self) -> None:
        self.findings = settle(self.root, self.before)
        self.hold.release()
        os.close(self.root)


@contextmanager
def session(workspace: Path, state: Path, *, private_git: Path | None = None) -> Iterator[Session]:
    made = Session(workspace, state, private_git=private_git)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


@pytest.fixture
def repository(workspace: Path) -> Path:
    git(workspace, "init", "-q", "-b", "main")
    (workspace / "file").write_text("1\n")
    git(workspace, "add", "file")
    git(workspace, "commit", "-qm", "first")
    return workspace


def tree(workspace: Path) -> set[str]:
    return {str(path.relative_to(workspace)) for path in workspace.rglob("*")}


def planted_commands_run(workspace: Path, where: Path | None = None) -> bool:
    """Use the workspace as a person would, and tell whether anything of the payload's ran."""
    place = where or workspace
    for line in (
        ["status"],
        ["add", "-A"],
        ["commit", "-qm", "x", "--allow-empty"],
        ["log", "-1"],
        ["checkout", "-q", "-b", "n"],
    ):
        git(place, *line, check=False)
    return (workspace.parent / "ran").exists()


EVIL = "printf '#!/bin/sh\\ntouch %s\\n' \"$RAN\""


def evil(workspace: Path, script: str) -> str:
    return f"RAN={workspace.parent}/ran; evil() {{ {EVIL}; }}; {script}"


HOOKS = "for h in pre-commit post-commit post-checkout; do evil > $G/hooks/$h; chmod +x $G/hooks/$h; done"
MONITOR = "evil > m.sh; chmod +x m.sh; printf '[core]\\nrepositoryformatversion=0\\nfsmonitor=\"%s/m.sh\"\\n' $PWD"
FRESH = {
    "hooks": f"git init -q . && G=.git && {HOOKS}",
    "fsmonitor": f"git init -q . && {MONITOR} > .git/config",
    "by hand": f"mkdir -p .git/{{hooks,objects,refs}} && echo 'ref: refs/heads/x' > .git/HEAD && G=.git && {HOOKS}",
    "renamed into place": f"git init -q x && G=x/.git && {HOOKS}; mv -T x/.git .git; rmdir .git; mv -T x/.git .git",
    "a link": f"git init -q x && G=x/.git && {HOOKS}; ln -s x/.git .git",
    "a git file": f"git init -q x && G=x/.git && {HOOKS}; echo 'gitdir: x/.git' > .git",
    "exchanged": f"git init -q x && G=x/.git && {HOOKS}; mv --exchange x/.git .git; python3 -c 'import ctypes,os;"
    'print(ctypes.CDLL(None).renameat2(-100,b"x/.git",-100,b".git",2))\'',
}


@pytest.mark.parametrize("attack", FRESH)
def test_a_git_directory_that_did_not_exist_cannot_be_planted(workspace: Path, state: Path, attack: str) -> None:
    with session(workspace, state) as made:
        made.run(evil(workspace, FRESH[attack]))
        # While the session still lives, before anything is settled:
        assert not planted_commands_run(workspace)
        assert os.listdir(workspace / ".git") == []
    assert not (workspace / ".git").exists()
    assert not planted_commands_run(workspace)


@pytest.mark.parametrize("attack", ["hooks", "fsmonitor", "by hand"])
def test_without_protection_the_same_attack_works(workspace: Path, attack: str) -> None:
    place = str(workspace)
    script = evil(workspace, FRESH[attack])
    base = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", place, place]
    subprocess.run([*base, "--chdir", place, "bash", "-c", script], env=ENVIRONMENT, capture_output=True, check=False)
    assert planted_commands_run(workspace)


KNOWN = {
    "hooks": f"G=.git && {HOOKS}",
    "configuration": f"{MONITOR} >> .git/config; git config core.fsmonitor $PWD/m.sh",
    "configuration replaced": f"{MONITOR} > c; mv -f c .git/config; ln -f c .git/config; cp --rem c .git/config",
    "hooks replaced": "rm -rf .git/hooks; mv .git/hooks .git/h; mkdir .git/hooks; G=.git; " + HOOKS,
    "the directory renamed": f"mv .git old; mkdir .git && cp -r old/. .git; G=.git; {HOOKS}; {MONITOR} > .git/config",
    "a common directory": f"git init -q e; G=e/.git; {HOOKS}; {MONITOR} > $G/config; echo ../e/.git > .git/commondir",
    "a worktree configuration": f"{MONITOR} > .git/config.worktree; git config extensions.worktreeConfig true",
}


@pytest.mark.parametrize("hooks_exist", [True, False])
@pytest.mark.parametrize("attack", KNOWN)
def test_an_existing_repository_takes_commits_and_no_commands(
    repository: Path, state: Path, attack: str, hooks_exist: bool
) -> None:
    if not hooks_exist:
        shutil.rmtree(repository / ".git" / "hooks")
    config = (repository / ".git" / "config").read_bytes()
    with session(repository, state) as made:
        assert made.run("echo 2 >> file && git commit -qam second && git gc -q && git status --short").returncode == 0
        made.run(evil(repository, KNOWN[attack]))
    assert not planted_commands_run(repository)
    assert (repository / ".git" / "config").read_bytes() == config
    assert "second" in git(repository, "log", "--oneline", "main")
    assert (repository / ".git" / "hooks").exists() is hooks_exist


NESTED = {
    "a repository": (f"git init -q sub && G=sub/.git && {HOOKS} && {MONITOR} >> sub/.git/config", "sub"),
    "a bare repository": (
        f"git init -q --bare sub && G=sub && {HOOKS} && {MONITOR} > sub/config && echo worktree=. >> sub/config",
        "sub",
    ),
    "deep": (f"git init -q a/b/c/d && G=a/b/c/d/.git && {HOOKS} && {MONITOR} >> $G/config", "a/b/c/d"),
    "in a dependency": (f"git init -q node_modules/x && G=node_modules/x/.git && {HOOKS}", "node_modules/x"),
    "the workspace itself, bare": (f"git init -q --bare t && mv t/* . && G=. && {HOOKS} && {MONITOR} >> config", "."),
    "a git file to a hidden directory": (
        (
            f"git init -q x && mkdir -p sub .h && mv x/.git .h/objects && G=.h/objects && {HOOKS}"
            " && echo 'gitdir: ../.h/objects' > sub/.git"
        ),
        "sub",
    ),
    "split by a common directory": (
        (
            f"git init -q x && G=x/.git && {HOOKS} && {MONITOR} > x/.git/config && mkdir -p sub/.git"
            " && mv x/.git/HEAD sub/.git && mv x/.git y && echo ../../y > sub/.git/commondir"
        ),
        "sub",
    ),
}


@pytest.mark.parametrize("attack", NESTED)
def test_a_repository_made_below_the_top_runs_nothing_afterwards(workspace: Path, state: Path, attack: str) -> None:
    script, where = NESTED[attack]
    with session(workspace, state) as made:
        done = made.run(evil(workspace, f"set -e; {script}"))
        assert done.returncode == 0, done.stderr
    assert made.findings
    assert not planted_commands_run(workspace, workspace / where)


@pytest.mark.parametrize("attack", ["a repository", "a bare repository", "deep", "in a dependency"])
def test_without_settling_the_nested_attack_works(workspace: Path, state: Path, attack: str) -> None:
    script, where = NESTED[attack]
    made = Session(workspace, state)
    made.run(evil(workspace, script))
    assert planted_commands_run(workspace, workspace / where)
    made.end()


def test_a_nested_repository_made_in_the_session_still_works_afterwards(workspace: Path, state: Path) -> None:
    with session(workspace, state) as made:
        script = "git init -q sub && cd sub && echo x > f && git add f && git commit -qm inside"
        assert made.run(script).returncode == 0
    assert "inside" in git(workspace / "sub", "log", "--oneline")
    assert git(workspace / "sub", "status", "--short") == ""


def replace_from_outside(config: Path, added: str) -> None:
    """What `git config` does on the host: a new file renamed over the old one, which detaches the sandbox's mount."""
    text = config.read_text()
    (config.parent / "config.lock").write_text(text + added)
    (config.parent / "config.lock").rename(config)


def test_a_configuration_changed_from_outside_during_the_session_keeps_its_own_and_loses_the_payloads(
    repository: Path, state: Path
) -> None:
    config = repository / ".git" / "config"
    git(repository, "config", "alias.mine", "!true")
    with session(repository, state) as made:
        script = evil(repository, f"echo ready; read go; {MONITOR} >> .git/config")
        child = subprocess.Popen(made.command(script), stdin=-1, stdout=-1, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        replace_from_outside(config, '[remote "origin"]\n\turl = https://example.com/x.git\n')
        child.communicate("go\n")
        assert "fsmonitor" in config.read_text()  # the mount is gone: this is what settling is for
    assert [finding.path for finding in made.findings] == [".git/config"]
    assert not planted_commands_run(repository)
    assert git(repository, "config", "alias.mine") == "!true\n"


def test_a_configuration_changed_only_from_outside_stays(repository: Path, state: Path) -> None:
    config = repository / ".git" / "config"
    git(repository, "config", "alias.mine", "!true")
    with session(repository, state) as made:
        replace_from_outside(config, '[remote "origin"]\n\turl = https://example.com/x.git\n')
    assert made.findings == ()
    assert git(repository, "config", "remote.origin.url") == "https://example.com/x.git\n"


@contextmanager
def seen_inside(made: Session) -> Iterator[int]:
    """The workspace as a running sandbox sees it."""
    info, told = os.pipe()
    command = made.command("read go")
    command[1:1] = ["--info-fd", str(told)]
    held = subprocess.Popen(command, stdin=-1, pass_fds=[told])
    os.close(told)
    try:
        with os.fdopen(info) as text:
            pid = json.load(text)["child-pid"]
        while not Path(f"/proc/{pid}/task/{pid}/children").read_text():
            assert held.poll() is None
        inside = os.open(f"/proc/{pid}/root{made.workspace}", os.O_RDONLY | os.O_DIRECTORY)
        yield inside
        os.close(inside)
    finally:
        held.communicate(b"")


def test_what_was_mounted_is_what_was_surveyed(repository: Path, state: Path) -> None:
    with session(repository, state) as made, seen_inside(made) as inside:
        verify(inside, made.before, held=made.hold.held)


def test_a_directory_exchanged_in_between_is_noticed(repository: Path, state: Path) -> None:
    (repository / "pkg" / ".vscode").mkdir(parents=True)
    with session(repository, state) as made:
        (repository / "pkg").rename(repository / "old")
        (repository / "pkg" / ".vscode").mkdir(parents=True)
        with seen_inside(made) as inside, pytest.raises(MountsDifferError, match="pkg"):
            verify(inside, made.before, held=made.hold.held)


def test_a_link_put_in_between_shows_nothing_outside(repository: Path, state: Path) -> None:
    (repository / "pkg" / ".vscode").mkdir(parents=True)
    outside = repository.parent / "secret"
    (outside / ".vscode").mkdir(parents=True)
    with session(repository, state) as made:
        (repository / "pkg").rename(repository / "old")
        (repository / "pkg").symlink_to(outside)
        assert made.run("touch pkg/reached").returncode != 0
    assert not (outside / "reached").exists()


def test_a_name_that_is_not_covered_is_noticed(workspace: Path, state: Path) -> None:
    with session(workspace, state) as made:
        made.mounts = ()
        with seen_inside(made) as inside, pytest.raises(MountsDifferError, match="not covered"):
            verify(inside, made.before, held=made.hold.held)


def test_editor_and_shell_files_do_not_take_effect(workspace: Path, state: Path) -> None:
    top = ".vscode .idea .husky .devcontainer .claude"
    with session(workspace, state) as made:
        for name in top.split():
            assert made.run(f"echo x > {name}/tasks.json").returncode != 0
        assert made.run("echo x > .envrc").returncode != 0
        made.run("mkdir -p sub/.vscode; for f in sub/.vscode/tasks.json .bashrc .env sub/.envrc; do echo x > $f; done")
    assert {finding.path for finding in made.findings} == {"sub/.vscode", "sub/.envrc", ".bashrc", ".env"}
    left = tree(workspace)
    assert not left & {".vscode", ".idea", ".envrc", ".bashrc", ".env", "sub/.vscode", "sub/.envrc"}
    assert ".env.wicketgate-set-aside" in left


def test_existing_tool_files_are_read_only_even_when_their_directory_moves(workspace: Path, state: Path) -> None:
    (workspace / "pkg" / ".vscode").mkdir(parents=True)
    (workspace / "pkg" / ".vscode" / "tasks.json").write_text("{}")
    (workspace / ".envrc").write_text("ok")
    with session(workspace, state) as made:
        made.run("mv pkg x; mkdir -p pkg/.vscode; echo evil > pkg/.vscode/tasks.json; echo evil > .envrc; rm -f .envrc")
    assert (workspace / "pkg" / ".vscode" / "tasks.json").read_text() == "{}"
    assert (workspace / ".envrc").read_text() == "ok"


def test_no_trace_is_left(workspace: Path, repository: Path, state: Path) -> None:
    before = tree(workspace)
    with session(workspace, state) as made:
        assert made.run("true").returncode == 0
        assert git(workspace, "status", "--short") == ""
    assert made.findings == ()
    assert tree(workspace) == before


def test_the_last_of_two_sessions_takes_the_directories_away(workspace: Path, state: Path) -> None:
    first, second = Session(workspace, state), Session(workspace, state)
    assert set(first.hold.held) == set(second.hold.held)
    first.end()
    assert (workspace / ".git").is_dir()
    second.run(evil(workspace, FRESH["hooks"]))
    assert not planted_commands_run(workspace)
    third = Session(workspace, state)
    second.end()
    third.run(evil(workspace, FRESH["hooks"]))
    assert not planted_commands_run(workspace)
    third.end()
    assert tree(workspace) == set()


def test_a_killed_servers_directories_go_with_the_process_that_outlives_it(workspace: Path, state: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom sandbox.protect import *\n"
        "root = os.open(sys.argv[1], os.O_RDONLY)\nh = hold(root, survey(root), state=Path(sys.argv[2]))\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n  os.close(w); os.read(r, 1); h.release(); os._exit(0)\n"
        "print('held', flush=True)\ninput()"
    )
    maker = subprocess.Popen([sys.executable, "-c", script, workspace, state], cwd=ROOT, stdin=-1, stdout=-1, text=True)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "held\n"
    assert (workspace / ".git").is_dir()
    maker.kill()
    assert maker.stdout.read() == ""  # until the process that outlives it has ended, too
    maker.communicate()
    assert tree(workspace) == set()


def test_directories_left_when_all_was_killed_go_with_the_next_session(workspace: Path, state: Path) -> None:
    abandoned = Session(workspace, state)
    os.close(abandoned.hold.lock)  # what the kernel does when every process is killed
    assert (workspace / ".git").is_dir()
    with session(workspace, state) as made:
        made.run(evil(workspace, FRESH["hooks"]))
        assert not planted_commands_run(workspace)
    assert tree(workspace) == set()


def test_a_directory_filled_from_outside_stays(workspace: Path, state: Path) -> None:
    with session(workspace, state):
        git(workspace, "init", "-q")
    assert "ref:" in (workspace / ".git" / "HEAD").read_text()


def test_a_private_repository_outlives_the_session_and_stays_out_of_the_workspace(
    workspace: Path, state: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    with session(workspace, state, private_git=private) as made:
        assert made.run("git init -q && echo x > f && git add f && git commit -qm one").returncode == 0
    with session(workspace, state, private_git=private) as made:
        assert "one" in made.run("git log --oneline").stdout
    assert tree(workspace) == {"f"}


def test_what_a_payload_makes_never_fails_the_next_session(workspace: Path, state: Path) -> None:
    with session(workspace, state) as made:
        script = (
            "mkfifo .env config HEAD fifo; ln -s / out; ln -s loop loop; mkdir -p objects refs hooks; mkfifo hooks/x;"
        )
        script += "ln -s /etc .npmrc; mkdir -p s/.git; ln -s /etc/passwd s/.git/config; mkfifo s/.git/HEAD;"
        script += "ln -s . s/.vscode; mkdir s/.git/objects s/.git/refs; mkdir -p $(printf 'd/%.0s' {1..500});"
        script += "echo x > $'a\\nb'; mkdir z; chmod 0 z; chmod 0 ."
        made.run(script)
    for _ in range(2):
        with session(workspace, state) as again:
            assert again.run("echo fine > fine && cat fine").stdout == "fine\n"
    (workspace / "z").chmod(0o700)
    subprocess.run(["rm", "-rf", workspace / "d"], check=True)  # too deep for the test runner's own cleaning
