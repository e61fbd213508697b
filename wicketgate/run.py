"""`wicketgate run`: one sandboxed command, with a cable to a broker of its own if something is allowed.

The order matters: look while the host's owners are visible, load every module, prepare the cable (`cabled`), drop to
the serving user, enter the user namespace, start the payload, wait.
"""

import os

from netns import kernel
from sandbox.host import find_command, look_at_host
from sandbox.inherited import check_streams, kept_flags
from sandbox.spec import Authority as Rights
from sandbox.supervise import block_signals
from sandbox.terminal import KeptTerminal
from wicketgate.identity import serving_identity
from wicketgate.start import Outcome, Request, Start, workspace_state

__all__ = ["Outcome", "Request", "run"]


def run(request: Request) -> Outcome:
    """Run the command to its end. Raises LaunchError or Interrupted before anything of the command was executed."""
    # More than any payload's: the kernel counts those in flight by user and refuses whoever may have less (unix(7)).
    kernel.raise_descriptors()
    check_streams((0,) if request.capture else (0, 1, 2))
    host = look_at_host()
    find_command(request.argv[0], request.workspace)
    identity = serving_identity()
    start = Start(
        request=request,
        session=os.urandom(8).hex(),
        host=host,
        identity=identity,
        state=None if request.judged is None else workspace_state(identity),
    )
    if request.broker is not None:
        from wicketgate import cabled  # noqa: PLC0415  a command without a network needs none of it
    elif request.grant is not None:
        from wicketgate import attached  # noqa: PLC0415
    block_signals()
    with KeptTerminal(), kept_flags():
        if request.broker is not None:
            return cabled.run_with_cable(start, request.broker)
        if request.grant is not None:
            grant, path = request.grant
            return attached.run_under_grant(start, path, grant)
        with start.dropped() as ground:
            ending, output = start.execute(ground, Rights(workspace=request.workspace))
        return Outcome(session=start.session, ending=ending, output=output)
