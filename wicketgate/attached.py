"""A run under a grant of a running broker: the lease is on its attach socket, and everything else is as with one's own.

The broker outlives the run. When it ends the lease, the sandbox has no network any more, the user is told, and the
command goes on without one; when the broker is back, the run attaches again (`wicketgate.lease`).
"""

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from broker.control.messages import Attach, Attached
from sandbox.errors import Code, LaunchError
from wicketgate.brokered import PATIENCE, OwnBroker, broker_refused
from wicketgate.cabled import state_directory
from wicketgate.lease import Lease
from wicketgate.start import Outcome, Start

if TYPE_CHECKING:
    from netns.bridge import Bridge


class AttachedBroker(OwnBroker):
    """A connection to the broker that serves others too. `pid` is 0: it is no child of this process."""

    grant: str = ""

    def attach_message(self, session: str) -> Attach:
        """What asks for the session to be served."""
        return Attach(session=session, grant=self.grant)

    def attach(self, session: str, bridge: "Bridge") -> None:
        """As with one's own, under the grant."""
        answer = self._ask(self.attach_message(session), bridge.listeners.descriptors())
        if not isinstance(answer, Attached):
            raise broker_refused(answer)
        bridge.listeners.close()

    def stop(self) -> None:
        """Close the lease; the broker goes on."""
        self.connection.close()


def run_under_grant(start: Start, path: Path, grant: str) -> Outcome:
    """Run the command with a cable to a running broker. Raises LaunchError."""
    state = state_directory(start.identity)
    with contextlib.ExitStack() as undo:
        broker = connect(path, grant)
        undo.callback(broker.stop)
        from sandbox.bridge import open_bridge  # noqa: PLC0415  as in `cabled`
        from wicketgate import cable  # noqa: PLC0415

        rights = cable.trust(start, state, broker.greeting())
        ground = undo.enter_context(start.dropped())
        bridge = undo.enter_context(open_bridge())
        broker.attach(start.session, bridge)
        message = broker.attach_message(start.session)
        lease = undo.enter_context(contextlib.closing(Lease(broker=broker, path=path, attach=message, bridge=bridge)))
        ending, output = start.execute(ground, rights, drains={lease.fileno(): lease.on_event})
        finished = lease.finish(bridge.count_refused())
    return Outcome(session=start.session, ending=ending, finished=finished, output=output)


def connect(path: Path, grant: str) -> AttachedBroker:
    """Connect to an attach socket. Raises LaunchError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        cause = f"No broker can be reached at {path} ({error.strerror or error})."
        cure = "Start it with `wicketgate broker --config FILE`, or name its attach socket with --socket."
        raise LaunchError(Code.BROKER_GONE, cause, cure) from error
    connection.settimeout(None)
    return AttachedBroker(0, connection, grant=grant)
