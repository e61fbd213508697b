"""Look at a workspace before a session: which protected things exist, and where.

Descriptor-based: no link is followed, so a path in the result is a real path below the workspace. Bounded in entries
and depth: a payload that filled the workspace in an earlier session must not make the next one slow or fail, so a
survey that reaches a bound says so (`complete`), with the top of the workspace always looked at first.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from sandbox.protect.below import above, inode_of, join, open_below, text_of
from sandbox.protect.names import GIT_FROZEN, HELD, in_dependency_tree, is_git, is_set_aside, looks_like_git_directory

SURVEY_ENTRIES, SURVEY_DEPTH = 20_000, 4  # what a start may cost; `settle` does not depend on a complete survey
WALK_ENTRIES, WALK_DEPTH = 5_000_000, 64
# File systems keep change times as coarsely as this.
CLOCK_GRAIN_NS = 2_000_000_000
MAX_FOUND = 256  # each becomes a mount; the kernel allows 100,000, start time does not
GIT_ENTERED = frozenset({"modules", "worktrees"})


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; all paths relative to the workspace, in the order of the walk (top first).

    `git_directories`: repositories' metadata, `.git` or a bare repository. `frozen`: what must be read-only.
    `absent`: HELD names that the top does not have. `complete`: whether every directory was seen. `since`: what has a
    change time (st_ctime_ns, which only the kernel sets) from here on may be the payload's work. `identities`: the
    frozen paths and the directories above them with their inode, because a mount is lost when the host replaces what it
    lies on. `configurations`: the repositories' `config` and its text.
    """

    git_directories: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    complete: bool = True
    since: int = 0
    identities: frozenset[tuple[str, int]] = frozenset()
    configurations: tuple[tuple[str, str], ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """One directory of a walk: its path, an open descriptor (valid until the next step) and its entries."""

    path: str
    descriptor: int
    entries: dict[str, bool]  # name → whether it is a real directory

    @property
    def is_git_directory(self) -> bool:
        """Whether git would use this directory as a repository."""
        return looks_like_git_directory(frozenset(self.entries))

    @property
    def is_named_git(self) -> bool:
        """Whether it is, or lies in, a directory named `.git`: nobody works in there."""
        return any(is_git(part) for part in self.path.split("/"))

    @property
    def has_tool_files(self) -> bool:
        """Whether an editor or a shell may look for its files here."""
        return not self.is_named_git and not in_dependency_tree(self.path)


def walk(root: int, *, entries: int = WALK_ENTRIES, depth: int = WALK_DEPTH) -> Iterator[Seen | None]:
    """Every directory below `root`, breadth first; None in place of what lies deeper, a last None at too many entries.

    Inside `.git` only what can hold further repositories' metadata is entered. Directories that cannot be opened are
    passed over.
    """
    waiting, left = deque([""]), entries
    while waiting:
        path = waiting.popleft()
        try:
            descriptor = open_below(root, path)
        except OSError:
            continue
        try:
            found = _entries(descriptor)
            left -= len(found)
            seen = Seen(path, descriptor, found)
            yield seen
            inner = GIT_ENTERED if seen.is_named_git else found.keys()
            below = [join(path, name) for name, real in found.items() if real and name in inner]
            if path.count("/") < depth:
                waiting.extend(below)
            elif below:
                yield None
        finally:
            os.close(descriptor)
        if left < 0:
            yield None
            return


def _entries(descriptor: int) -> dict[str, bool]:
    with os.scandir(descriptor) as found:
        return {entry.name: entry.is_dir(follow_symlinks=False) for entry in found}


def survey(root: int) -> Survey:
    """Survey the workspace behind the descriptor `root` (readable, a directory)."""
    since = time.time_ns() - CLOCK_GRAIN_NS
    repositories: list[str] = []
    frozen: list[str] = []
    absent: tuple[str, ...] = ()
    complete = True
    for seen in walk(root, entries=SURVEY_ENTRIES, depth=SURVEY_DEPTH):
        if seen is None:
            complete = False
            continue
        if len(repositories) + len(frozen) > MAX_FOUND:
            complete = False
            break
        if seen.path == "":
            folded = {name.casefold() for name in seen.entries}
            absent = tuple(name for name in HELD if name not in folded)
        if seen.is_git_directory:
            repositories.append(seen.path)
            frozen += [join(seen.path, name) for name in GIT_FROZEN if _is_plain(seen, name)]
        if seen.has_tool_files:
            frozen += [join(seen.path, name) for name in seen.entries if is_set_aside(name) and _is_plain(seen, name)]
        if not seen.is_named_git:
            frozen += [
                join(seen.path, name)
                for name, real in seen.entries.items()
                if is_git(name) and _is_plain(seen, name) and not real
            ]
    fixed = {place for path in (*frozen, *repositories) if path for place in (*above(path), path)}
    configs = {(path, "config") for path in repositories}
    return Survey(
        git_directories=tuple(repositories),
        frozen=tuple(frozen),
        absent=absent,
        complete=complete,
        since=since,
        identities=frozenset((path, inode) for path in fixed if (inode := inode_of(root, path)) is not None),
        configurations=tuple(
            (path, text)
            for path in frozen
            if path.rpartition("/")[::2] in configs and (text := text_of(root, path)) is not None
        ),
    )


def _is_plain(seen: Seen, name: str) -> bool:
    """Whether an entry is a regular file or a directory; a link cannot be frozen where it is, only what it leads to."""
    if name not in seen.entries:
        return False
    try:
        mode = os.stat(name, dir_fd=seen.descriptor, follow_symlinks=False).st_mode
    except FileNotFoundError:  # another session of the workspace has taken it away
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
