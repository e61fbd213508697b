"""A run with a cable: a broker of its own, the trust kit, the bridge. The payload starts when all of them stand."""

import contextlib
import os
from pathlib import Path

from broker.audit.location import NoStateDirectory, default_state_dir
from sandbox.errors import Code, LaunchError
from wicketgate.brokered import OwnBroker
from wicketgate.identity import Identity, prepare_state
from wicketgate.start import Outcome, Start


def run_with_cable(start: Start, broker: OwnBroker) -> Outcome:
    """Run the command with a cable to a broker that lives as long as it. Raises LaunchError."""
    state = state_directory(start.identity)
    with contextlib.ExitStack() as undo:
        undo.callback(broker.stop)
        broker.begin(start.identity, state, start.request.certificates)
        from sandbox.bridge import open_bridge  # noqa: PLC0415  loaded while the broker makes itself ready
        from wicketgate import cable  # noqa: PLC0415

        rights = cable.trust(start, state, broker.greeting())
        ground = undo.enter_context(start.dropped())
        bridge = undo.enter_context(open_bridge())
        broker.attach(start.session, bridge)
        ending, output = start.execute(ground, rights, broker=broker.pid)
        finished = broker.finish(bridge.count_refused())
    return Outcome(session=start.session, ending=ending, finished=finished, output=output)


def state_directory(identity: Identity) -> Path:
    """The state directory, made and owned as it must be. Raises LaunchError."""
    cure = "Set XDG_STATE_HOME to a directory that this user can write."
    try:
        state = default_state_dir(os.environ, os.geteuid())
        prepare_state(state, identity)
    except NoStateDirectory as error:
        cause = "Neither XDG_STATE_HOME nor HOME names a state directory, and without a log nothing is allowed."
        raise LaunchError(Code.NO_STATE_DIRECTORY, cause, cure) from error
    except OSError as error:
        cause = f"The state directory {state} cannot be used ({error.strerror}), and without a log nothing is allowed."
        raise LaunchError(Code.NO_STATE_DIRECTORY, cause, cure) from error
    return state
