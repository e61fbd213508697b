"""Control groups: bound the memory, tasks and cpu of a session as a whole, where the host lets us.

`layout` reads the kernel's texts (pure), `detect` finds a writable tree, `claim` makes a server's own part of it,
`group` makes, fills, kills and removes one session's directories in there.

Who removes them: the process that made a group removes it. A directory is the one thing here that the kernel does not
take back when its maker is killed, so a server claims its part under a lease: `keep` starts a process that outlives
the server and removes everything when the last end of a pipe closes, by whatever cause. If that process is killed too,
the directories that stay are empty and bound nobody; a service manager or container engine removes them with the
service's own group, and `reclaim` removes them at the next start.
"""

from sandbox.cgroups.claim import Claim, claim, keep, undo
from sandbox.cgroups.detect import detect
from sandbox.cgroups.group import Group, GroupError, Usage, create, reclaim
from sandbox.cgroups.layout import Support, Version

__all__ = [
    "Claim",
    "Group",
    "GroupError",
    "Support",
    "Usage",
    "Version",
    "claim",
    "create",
    "detect",
    "keep",
    "reclaim",
    "undo",
]
