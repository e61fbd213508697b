"""Decide whether a directory may be a workspace, from facts about it. Pure: opens and reads nothing.

The rules are a numbered order, and the first that objects is reported:
 1 the root · 2 state and databases · 3 system roots · 4 a home or a parent of one · 5 credentials · 6 version
 control · 7 a home's settings · 8 mounts below · 9 owner · 10 rights · 11 read-only.
Paths are compared by name and, where it is known, by identity (device and inode), so that a second mount of a
forbidden directory is seen as what it is.
"""

import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from sandbox.workspace.errors import WorkspaceCode, WorkspaceError

type Identity = tuple[int, int]  # st_dev, st_ino
OVERFLOW_ID = 65534  # the kernel's default for an id that has no name here

# Refused with all that lies below.
SYSTEM_TREES = tuple(
    map(
        Path,
        (
            *("/bin", "/boot", "/dev", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/lost+found", "/nix"),
            *("/gnu", "/proc", "/run", "/sbin", "/snap", "/sys", "/usr", "/var/backups", "/var/cache", "/var/db"),
            *("/var/lib", "/var/local", "/var/lock", "/var/log", "/var/mail", "/var/run", "/var/spool"),
            *("/System", "/Library", "/Applications"),
        ),
    )
)
# Refused themselves; a directory below may be fine.
SYSTEM_PLACES = tuple(
    map(
        Path,
        (
            *("/media", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/opt", "/var/tmp", "/var/www"),  # noqa: S108
            *("/data", "/volumes", "/export", "/net"),
        ),
    )
)
ALWAYS_HOMES = (Path("/root"),)
HOME_PARENTS = (Path("/home"), Path("/var/home"), Path("/Users"), Path("/export/home"))

# Compared without case, anywhere in the path: some file systems fold case, and no project needs such a name.
CREDENTIAL_NAMES = frozenset(
    {
        *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".password-store", ".oci", ".pki", ".terraform.d"),
        *(".vault", ".keychain", ".mozilla", ".thunderbird", ".gcloud", ".gem", ".m2", ".config/gcloud", ".config/gh"),
        *(".config/git", ".config/op", ".config/hub", ".config/containers", ".config/doctl", ".config/rclone"),
        *(".config/sops", ".config/google-chrome", ".config/chromium", ".local/share/keyrings"),
        ".local/share/containers",
    }
)
VERSION_CONTROL_NAMES = frozenset({".git", ".hg", ".svn", ".bzr", ".jj", ".sl", ".fslckout", "cvs", "_darcs", ".pijul"})


class ForbiddenRoots(msgspec.Struct, frozen=True, kw_only=True):
    """What the server keeps workspaces away from. All paths canonical and absolute.

    `homes`: home directories, of the serving user and of others; `own_home`: the serving user's, which may lie in a
    system tree (`/var/lib/NAME`) and may hold workspaces even so. `state`: this program's own directories (keys, logs,
    sockets, jobs). `databases`: configured database files or directories. `managed`: the server's root for workspaces;
    what lies strictly below it is exempt from the rules about state, home settings and system trees, which the server
    decided when it configured the root. `identities`: (device, inode) → the path among the above that it belongs to.
    """

    homes: tuple[Path, ...] = ()
    own_home: Path | None = None
    state: tuple[Path, ...] = ()
    databases: tuple[Path, ...] = ()
    managed: Path | None = None
    identities: tuple[tuple[Identity, Path], ...] = ()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about an opened directory."""

    path: Path  # canonical
    identity: Identity
    ancestors: tuple[Identity, ...]  # of the parents, nearest first
    owner: int
    mode: int
    read_only: bool
    mounts_below: tuple[Path, ...] = ()
    protected_below: tuple[Path, ...] = ()  # forbidden roots that have this directory as an ancestor


def is_below(path: Path | str, root: Path) -> bool:
    """Whether an absolute path lies strictly below another, by name. (`Path.parents` makes a value of each parent.)"""
    whole, start = str(path), str(root)
    return whole != start and whole.startswith(start if start.endswith("/") else f"{start}/")


def is_in(path: Path, root: Path) -> bool:
    """Whether an absolute path is another or lies below it, by name."""
    return path == root or is_below(path, root)


def judge(facts: Facts, forbidden: ForbiddenRoots, uid: int | None) -> None:
    """Raise `WorkspaceError` with the first rule that objects; return when the directory may be a workspace."""
    for rule in _RULES:
        rule(facts, forbidden, uid)


def _refuse(code: WorkspaceCode, cause: str, cure: str) -> None:
    raise WorkspaceError(code, cause, cure)


def _root(facts: Facts, _forbidden: ForbiddenRoots, _uid: int | None) -> None:
    if facts.path == Path("/") or (facts.ancestors and facts.identity == facts.ancestors[-1]):
        _refuse(WorkspaceCode.ROOT, "“/” is the whole machine", "choose a project directory")


def _overlaps(facts: Facts, forbidden: ForbiddenRoots, root: Path) -> bool:
    """Whether the directory is, holds or lies in `root`, by name or by identity."""
    if is_in(root, facts.path) or is_in(facts.path, root) or root in facts.protected_below:
        return True
    own = {identity for identity, path in forbidden.identities if path == root}
    return bool(own & {facts.identity, *facts.ancestors})


def _server_data(facts: Facts, forbidden: ForbiddenRoots, _uid: int | None) -> None:
    for root in forbidden.databases:
        if _overlaps(facts, forbidden, root):
            _refuse(WorkspaceCode.DATABASE, f"“{facts.path}” holds or lies in the database “{root}”", "choose another")
    for root in forbidden.state:
        if _overlaps(facts, forbidden, root) and not _is_managed(facts, forbidden):
            _refuse(
                WorkspaceCode.OWN_STATE, f"“{facts.path}” overlaps this server's own data “{root}”", "choose another"
            )


def _is_managed(facts: Facts, forbidden: ForbiddenRoots) -> bool:
    return forbidden.managed is not None and is_below(facts.path, forbidden.managed)


def _home(facts: Facts, forbidden: ForbiddenRoots, _uid: int | None) -> None:
    path = facts.path
    homes = {*forbidden.homes, *ALWAYS_HOMES} - {Path("/")}
    same = {identity for identity, home in forbidden.identities if home in homes}
    if path in homes or facts.identity in same or (path.parent in HOME_PARENTS and path not in HOME_PARENTS):
        _refuse(WorkspaceCode.HOME, f"“{path}” is a home directory", "choose or make a directory inside it")
    inside = next((home for home in sorted(homes) if is_below(home, path) or home in facts.protected_below), None)
    if inside is not None or path in HOME_PARENTS:
        _refuse(WorkspaceCode.HOME_PARENT, f"“{path}” holds home directories", "choose a project directory")


def _credentials(facts: Facts, _forbidden: ForbiddenRoots, _uid: int | None) -> None:
    parts = [part.casefold() for part in facts.path.parts]
    chains = ["/".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, start + 4)]
    found = next((chain for chain in chains if chain in CREDENTIAL_NAMES), None)
    if found is not None:
        _refuse(WorkspaceCode.CREDENTIALS, f"“{found}” in “{facts.path}” keeps credentials", "choose another")


def _version_control(facts: Facts, _forbidden: ForbiddenRoots, _uid: int | None) -> None:
    for part in facts.path.parts:
        if part.casefold() in VERSION_CONTROL_NAMES:
            _refuse(
                WorkspaceCode.VERSION_CONTROL,
                f"“{part}” in “{facts.path}” is version control data",
                "choose the working tree it belongs to",
            )


def _home_settings(facts: Facts, forbidden: ForbiddenRoots, _uid: int | None) -> None:
    if _is_managed(facts, forbidden):
        return
    for home in forbidden.homes:
        if is_below(facts.path, home) and facts.path.relative_to(home).parts[0].startswith("."):
            _refuse(
                WorkspaceCode.HOME_SETTINGS, f"“{facts.path}” belongs to the settings of “{home}”", "choose another"
            )


def _system(facts: Facts, forbidden: ForbiddenRoots, _uid: int | None) -> None:
    if _is_managed(facts, forbidden) or (forbidden.own_home is not None and is_below(facts.path, forbidden.own_home)):
        return
    if facts.path in SYSTEM_PLACES or any(is_in(facts.path, tree) for tree in SYSTEM_TREES):
        _refuse(WorkspaceCode.SYSTEM_ROOT, f"“{facts.path}” belongs to the system", "choose a project directory")


def _mounts(facts: Facts, _forbidden: ForbiddenRoots, _uid: int | None) -> None:
    if facts.mounts_below:
        _refuse(
            WorkspaceCode.NESTED_MOUNT,
            f"“{facts.mounts_below[0]}” is mounted inside “{facts.path}”",
            "unmount it or choose a directory without mounts",
        )


def _owner(facts: Facts, _forbidden: ForbiddenRoots, uid: int | None) -> None:
    if uid is not None and facts.owner != uid:
        # In a user namespace everybody else looks like the overflow user (user_namespaces(7)).
        owner = "another user" if facts.owner == OVERFLOW_ID else f"user {facts.owner}"
        _refuse(
            WorkspaceCode.NOT_OWNED,
            f"“{facts.path}” belongs to {owner}, and the server runs as user {uid}",
            f"choose a directory of user {uid}, or have an administrator give this one away with “chown -R {uid}”",
        )


def _rights(facts: Facts, _forbidden: ForbiddenRoots, _uid: int | None) -> None:
    if facts.mode & stat.S_IRWXU != stat.S_IRWXU:
        _refuse(
            WorkspaceCode.NOT_ACCESSIBLE,
            f"“{facts.path}” lacks rights for its owner (mode {stat.S_IMODE(facts.mode):04o})",
            "run “chmod u+rwx” on it",
        )


def _read_only(facts: Facts, _forbidden: ForbiddenRoots, _uid: int | None) -> None:
    if facts.read_only:
        _refuse(WorkspaceCode.READ_ONLY, f"“{facts.path}” is on a read-only mount", "choose a writable one")


_RULES: tuple[Callable[[Facts, ForbiddenRoots, int | None], None], ...] = (
    *(_root, _server_data, _system, _home, _credentials, _version_control, _home_settings),
    *(_mounts, _owner, _rights, _read_only),
)
