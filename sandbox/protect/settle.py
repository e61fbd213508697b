"""After a session: make harmless what its payload made under names that nobody could hold.

A repository in a subdirectory, a bare repository of any name, a task file in a subproject: they are found by their
shape, compared with what the survey saw before, and lose what would run outside. Nothing of the payload's is thrown
away: it is renamed beside itself with a suffix that no tool knows. Call it when every process of the session is dead.
Another session of the workspace may be at work meanwhile: what it takes away or puts in the way keeps nothing else from
being looked at.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator

import msgspec

from sandbox.protect.below import join, read_text
from sandbox.protect.gitconfig import harmless, is_harmless
from sandbox.protect.names import is_git, is_set_aside
from sandbox.protect.survey import WALK_DEPTH, WALK_ENTRIES, Seen, Survey, walk

SUFFIX = ".wicketgate-set-aside"
# What a new repository may not bring along. `commondir` moves the place where git looks for the configuration.
GIT_UNWANTED = ("hooks", "config.worktree", "commondir", "info")
# A submodule or a linked worktree of a repository of this workspace, as git writes it; those places are looked at.
_INSIDE_REPOSITORY = re.compile(
    r"gitdir: (?:[^\n]*/)?\.git/(?:modules|worktrees)/(?!\.\.?/|[^\n]*/\.\.?(?:/|\n))[^\n]+\n?"
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was made harmless: its path relative to the workspace, and what was done, in words for people."""

    path: str
    done: str


def settle(root: int, before: Survey, *, entries: int = WALK_ENTRIES, depth: int = WALK_DEPTH) -> tuple[Finding, ...]:
    """Look through the workspace behind `root` and make new executable metadata harmless.

    `before` is the survey from before the session. What was frozen then cannot have changed; of the rest, what changed
    since is judged. A walk that reaches a bound leaves a finding that says so. Also gives the owner back the right to
    enter the workspace itself, which a payload may have taken away.
    """
    os.chmod(f"/proc/self/fd/{root}", stat.S_IMODE(os.fstat(root).st_mode) | stat.S_IRWXU)  # noqa: PTH101
    findings: list[Finding] = []
    unseen = 0
    for seen in walk(root, entries=entries, depth=depth):
        if seen is None:
            unseen += 1
            continue
        new = _News(seen, before)
        if seen.is_git_directory:
            findings += _repository(new)
        if seen.has_tool_files:
            for name in sorted(filter(is_set_aside, seen.entries)):
                findings += _move(seen, name) if new.has(name) else ()
        if not seen.is_named_git:
            findings += _git_links(new)
    if unseen:
        findings.append(Finding(path="", done=f"not looked at: what is deeper than {depth} or after {entries} entries"))
    return tuple(findings)


class _News(msgspec.Struct, frozen=True):
    """What is new in one directory of the walk."""

    seen: Seen
    before: Survey

    def has(self, name: str) -> bool:
        """Whether an entry may be the payload's: there, not frozen, not an empty directory, and changed since."""
        try:
            if name not in self.seen.entries or self._kept(name):
                return False
            if not self.seen.entries[name]:
                return self._changed(name)
            inside = _listing(self.seen.descriptor, name)
            return inside is None or (bool(inside) and (self._changed(name) or max(inside) >= self.before.since))
        except FileNotFoundError:
            return False

    def _kept(self, name: str) -> bool:
        """Whether an entry was frozen and is the same still: the mount on it was not lost."""
        status = os.stat(name, dir_fd=self.seen.descriptor, follow_symlinks=False)
        return (join(self.seen.path, name), status.st_ino) in self.before.identities

    def _changed(self, name: str) -> bool:
        return os.stat(name, dir_fd=self.seen.descriptor, follow_symlinks=False).st_ctime_ns >= self.before.since


def _git_links(new: _News) -> Iterator[Finding]:
    """A new `.git` that is no directory: a link, or a file that names a repository somewhere else."""
    for name, real in new.seen.entries.items():
        if is_git(name) and not real and new.has(name):
            text = read_text(new.seen.descriptor, name)
            if text is None or not _INSIDE_REPOSITORY.fullmatch(text):
                yield from _move(new.seen, name)


def _repository(new: _News) -> Iterator[Finding]:
    seen = new.seen
    linked = _is_linked_worktree(seen)
    for name in GIT_UNWANTED:
        if new.has(name) and not (linked and name == "commondir"):
            yield from _move(seen, name)
    if new.has("config"):
        text = read_text(seen.descriptor, "config")
        known = dict(new.before.configurations).get(join(seen.path, "config"), "")
        if text is None or not is_harmless(text, known):
            yield from _move(seen, "config")
            with contextlib.suppress(OSError):  # git needs none
                _write(seen.descriptor, "config", known or harmless(text or ""))


def _is_linked_worktree(seen: Seen) -> bool:
    """`.git/worktrees/NAME`, as `git worktree add` makes it: its commondir is the repository that it lies in."""
    parts = seen.path.split("/")
    placed = len(parts) > 2 and is_git(parts[-3]) and parts[-2] == "worktrees"
    return placed and read_text(seen.descriptor, "commondir") == "../..\n"


def _move(seen: Seen, name: str) -> tuple[Finding, ...]:
    new = name + SUFFIX
    with contextlib.suppress(FileNotFoundError):
        os.stat(new, dir_fd=seen.descriptor, follow_symlinks=False)
        new = f"{new}-{os.urandom(4).hex()}"
    try:
        os.rename(name, new, src_dir_fd=seen.descriptor, dst_dir_fd=seen.descriptor)
    except FileNotFoundError:
        return ()
    except OSError as error:
        done = f"left where it is, though it could run outside the sandbox: it cannot be renamed ({error.strerror})"
        return (Finding(path=join(seen.path, name), done=done),)
    return (Finding(path=join(seen.path, name), done=f"renamed to {new}: it could have run outside the sandbox"),)


def _write(parent: int, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=parent), "w", encoding="utf-8") as file:
        file.write(text)


def _listing(parent: int, name: str) -> list[int] | None:
    """The change times of a directory's entries; None when it cannot be read."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    try:
        with os.scandir(descriptor) as found:
            return [time for entry in found if (time := _change_time(entry)) is not None]
    finally:
        os.close(descriptor)


def _change_time(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return None
