"""Keep what a payload writes in its workspace from running outside of it later.

Version control metadata, editor tasks, hook directories and credential files are protected whether or not they exist.
`docs/decisions/0004-protecting-absent-paths.md` has the experiments that led here. In short, in the order of a session:

1. `survey` looks at the workspace (descriptor-based, bounded, follows no link);
2. `hold` puts an empty directory where a strict name is absent, under a lock shared by the sessions of a workspace, and
   a `Keeper` is told, a process that does the last two steps for a server that was killed;
3. `operations` (pure) gives the mounts: pins, read-only binds, private or empty directories over the held names;
4. `verify`, while bubblewrap is still held, compares what was mounted with what was surveyed: another session's payload
   may have put a link in between, and bubblewrap follows links in a source;
5. after everything of the session is dead, `settle` makes harmless what the payload made under other names;
6. `Hold.release` removes the empty directories when the last session of the workspace ends.
"""

from sandbox.protect.hold import Hold, hold, sweep, take_away
from sandbox.protect.keeper import ANNOUNCED, Keeper, start_keeper
from sandbox.protect.mounts import operations
from sandbox.protect.settle import Finding, settle
from sandbox.protect.survey import Survey, survey
from sandbox.protect.verify import MountsDifferError, verify

__all__ = [
    "ANNOUNCED",
    "Finding",
    "Hold",
    "Keeper",
    "MountsDifferError",
    "Survey",
    "hold",
    "operations",
    "settle",
    "start_keeper",
    "survey",
    "sweep",
    "take_away",
    "verify",
]
