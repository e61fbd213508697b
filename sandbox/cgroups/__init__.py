"""Control groups: bound the memory, tasks and cpu of a session as a whole, where the host lets us.

`layout` reads the kernel's texts (pure), `detect` finds a writable tree, `group` makes, fills, kills and removes one
session's directories.

Who removes them: the process that made a group removes it. A directory is the one thing here that the kernel does not
take back when its maker is killed, so a group is only made under a lease: `remove_when_released` blocks in a process
that outlives the maker (the launcher's supervisor) and removes the group when the maker's end of a pipe closes, by
whatever cause. If that process is killed too, the directory that stays is empty and bounds nobody; a service manager
or container engine removes it with the service's own group, and `reclaim` removes it at the next start.
"""

from sandbox.cgroups.detect import detect, prepare
from sandbox.cgroups.group import Group, GroupError, Usage, create, reclaim, remove_when_released
from sandbox.cgroups.layout import Support, Version

__all__ = [
    "Group",
    "GroupError",
    "Support",
    "Usage",
    "Version",
    "create",
    "detect",
    "prepare",
    "reclaim",
    "remove_when_released",
]
