"""Why a workspace was refused: a stable code and one sentence with the cause and the cure."""

from enum import StrEnum


class WorkspaceCode(StrEnum):
    """The closed set of refusals."""

    EMPTY = "empty"
    NOT_ABSOLUTE = "not_absolute"
    BAD_CHARACTER = "bad_character"
    TOO_LONG = "too_long"
    NOT_FOUND = "not_found"
    NOT_A_DIRECTORY = "not_a_directory"
    NOT_REACHABLE = "not_reachable"  # a directory on the way may not be entered
    SYMLINK = "symlink"
    ROOT = "root"
    SYSTEM_ROOT = "system_root"
    HOME = "home"
    HOME_PARENT = "home_parent"
    HOME_SETTINGS = "home_settings"  # a hidden directory of a home: start-up files and programs' settings
    CREDENTIALS = "credentials"
    VERSION_CONTROL = "version_control"
    OWN_STATE = "own_state"
    DATABASE = "database"
    NESTED_MOUNT = "nested_mount"
    NOT_OWNED = "not_owned"
    NOT_ACCESSIBLE = "not_accessible"
    READ_ONLY = "read_only"
    CHANGED = "changed"  # the directory was exchanged after it was judged
    BAD_NAME = "bad_name"
    EXISTS = "exists"
    BAD_MANAGED_ROOT = "bad_managed_root"


class WorkspaceError(ValueError):
    """A refused workspace. `cause` says what is wrong, `cure` what to choose or do instead."""

    def __init__(self, code: WorkspaceCode, cause: str, cure: str) -> None:
        super().__init__(f"{cause}; {cure}.")
        self.code = code
        self.cause = cause
        self.cure = cure
