"""Which directory a payload may write to: one validating function for the picker, the API, the store and the launch.

`text` judges the typed value, `inspect` opens it and collects facts, `rules` decides on the facts (pure), `managed`
makes and lists folders under the server's own root, `choice` remembers one per user, `host` collects what the server
keeps workspaces away from. A workspace is a value: its canonical path and the identity of the directory, so that the
launcher can tell whether it mounts what was judged.

What a payload can make inside its workspace (links, FIFOs, any number of files, odd names) is never judged here: a
payload must not be able to lock its user out.
"""

from sandbox.workspace.choice import choose_workspace, forget_choice, recall_choice
from sandbox.workspace.errors import WorkspaceCode, WorkspaceError
from sandbox.workspace.host import forbidden_roots
from sandbox.workspace.inspect import Workspace, validate_workspace
from sandbox.workspace.managed import create_workspace, list_workspaces
from sandbox.workspace.rules import ForbiddenRoots

__all__ = [
    "ForbiddenRoots",
    "Workspace",
    "WorkspaceCode",
    "WorkspaceError",
    "choose_workspace",
    "create_workspace",
    "forbidden_roots",
    "forget_choice",
    "list_workspaces",
    "recall_choice",
    "validate_workspace",
]
