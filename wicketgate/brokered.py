"""A broker of one's own: a child process that has the network and no right over the sandbox's namespaces.

It enters a user namespace beside the runner's, so that not even being the same user gives it a capability there, and
drops all capabilities. It ends when its runner does.
"""

import contextlib
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import msgspec

from broker.control.messages import (
    Attach,
    Attached,
    Ended,
    Finish,
    Finished,
    FromBroker,
    FromRunner,
    Greeting,
    Rejected,
    decode_from_broker,
    encode,
)
from broker.control.settings import Settings
from netns import handoff, kernel
from sandbox.errors import Code, LaunchError
from wicketgate.identity import Identity
from wicketgate.speech import say
from wicketgate.start import settle_memory

if TYPE_CHECKING:
    from netns.bridge import Bridge

# Seconds for each answer. One that has ended is seen at once; this is for one that hangs, and a machine on which a
# hundred start at the same moment is not to be taken for that.
PATIENCE = 60.0
_CURE = "Its own record is in the state directory; WICKETGATE_DEBUG=1 shows its trace."
_GONE = LaunchError(Code.BROKER_GONE, "The broker ended before it answered, or did not answer in time.", _CURE)


class OwnBroker(msgspec.Struct):
    """A started broker: its pid and the attach connection."""

    pid: int
    connection: socket.socket

    def greeting(self) -> bytes:
        """Wait until the broker is ready; its CA certificates (PEM). Raises LaunchError."""
        answer = self._answer()
        if not isinstance(answer, Greeting):
            raise _failed("The broker cannot start", answer)
        return answer.authority.encode()

    def attach(self, session: str, bridge: "Bridge") -> None:
        """Hand the bridge's listeners over; they are the broker's from here on. Raises LaunchError."""
        answer = self._ask(Attach(session=session), bridge.listeners.descriptors())
        if not isinstance(answer, Attached):
            raise broker_refused(answer)
        bridge.listeners.close()

    def finish(self, refused: int) -> Finished | None:
        """End the session; the counts, or None where the broker has gone."""
        with contextlib.suppress(LaunchError, OSError):
            handoff.send(self.connection, encode(Finish(refused=refused)))
        # What it said before comes first: why it ended, or why it stopped serving.
        with contextlib.suppress(LaunchError):
            while True:
                answer = self._answer()
                if isinstance(answer, Finished):
                    return answer
                say(f"the broker ended the session: {_detail(answer)}")
        return None

    def stop(self) -> None:
        """Close the lease and wait for the process; it has nothing left to do."""
        self.connection.close()
        pidfd = os.pidfd_open(self.pid)
        try:
            if not select.select([pidfd], [], [], PATIENCE)[0]:
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        finally:
            os.close(pidfd)

    def _ask(self, message: FromRunner, descriptors: list[int] | None = None) -> FromBroker:
        try:
            handoff.send(self.connection, encode(message), descriptors)
        except OSError as error:
            raise _GONE from error
        return self._answer()

    def _answer(self) -> FromBroker:
        try:
            if not select.select([self.connection], [], [], PATIENCE)[0]:
                raise _GONE
            answer, _ = handoff.receive(self.connection)
        except OSError as error:
            raise _GONE from error
        if not answer:
            raise _GONE
        decoded: FromBroker = decode_from_broker(answer)
        return decoded


def broker_refused(answer: FromBroker) -> LaunchError:
    """The error of an answer that is no `Attached`."""
    return _failed("The broker refused the session", answer)


def _failed(what: str, answer: FromBroker) -> LaunchError:
    return LaunchError(Code.BROKER_FAILED, f"{what}: {_detail(answer)}.", _CURE)


def _detail(answer: FromBroker) -> str:
    return answer.detail if isinstance(answer, Rejected | Ended) else "it answered another question"


def start_broker(identity: Identity, settings: Settings) -> OwnBroker:
    """Fork the broker. It loads its modules before it drops to `identity`, who may not be able to read them."""
    mine, theirs = handoff.pair()
    parent = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        mine.close()
        _be_broker(theirs, identity, settings, parent)
    theirs.close()
    os.close(parent)
    return OwnBroker(pid, mine)


def _be_broker(connection: socket.socket, identity: Identity, settings: Settings, parent: int) -> NoReturn:
    status = 1
    try:
        kernel.die_with_parent()  # and again below: a change of user clears it
        os.setsid()  # the terminal's signals are for the payload
        _detach(connection, parent)
        from broker.gateway.serve import preload, serve_one  # noqa: PLC0415  in this process only, beside the runner's work

        if not identity.is_current:
            preload()
        identity.become()
        _enter_user_namespace()
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.die_with_parent()
        if select.select([parent], [], [], 0)[0]:
            os._exit(1)
        settle_memory()
        serve_one(connection, settings)
        status = 0
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        _complain(connection, error)
    os._exit(status)


def _enter_user_namespace() -> None:
    try:
        kernel.enter_user_namespace()
    except OSError as error:
        text = f"the kernel refuses a user namespace ({kernel.explain_namespaces(error)})"
        raise RuntimeError(text) from error


def _complain(connection: socket.socket, error: BaseException) -> None:
    """Tell the runner, who speaks for both; it reads this instead of the answer that it waits for."""
    if os.environ.get("WICKETGATE_DEBUG") == "1":
        sys.excepthook(type(error), error, error.__traceback__)  # needs no module that may be unreadable by now
    detail = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) and error.filename else str(error)
    with contextlib.suppress(OSError, ValueError):
        handoff.send(connection, encode(Rejected("broker_failed", detail or type(error).__name__)))


def _detach(connection: socket.socket, parent: int) -> None:
    """Keep the attach connection and standard error, nothing else of the runner's."""
    kernel.keep_descriptors({2, connection.fileno(), parent})
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
