"""The side of a run that has a broker: start one's own, hear whether it understands, let it begin, attach, finish."""

import contextlib
import os
import select
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

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
from netns import handoff
from sandbox.errors import Code, LaunchError
from wicketgate.broker_process import Begin, Mistaken, Understood, decode_understood, encode_begin, fork_broker
from wicketgate.identity import Identity
from wicketgate.rules import Words
from wicketgate.speech import say

if TYPE_CHECKING:
    from netns.bridge import Bridge

# Seconds for each answer. One that has ended is seen at once; this is for one that hangs, and a machine on which a
# hundred start at the same moment is not to be taken for that.
PATIENCE = 60.0
_CURE = "Its own record is in the state directory; WICKETGATE_DEBUG=1 shows its trace."
_GONE = LaunchError(Code.BROKER_GONE, "The broker ended before it answered, or did not answer in time.", _CURE)


class OwnBroker(msgspec.Struct):
    """A started broker: its pid and the attach connection. `begun`: whether it was told to begin."""

    pid: int
    connection: socket.socket
    begun: bool = False

    def problem(self) -> str | None:
        """Why what was typed means nothing, None where it does. Once, before `begin`. Raises LaunchError."""
        answer = decode_understood(self._receive())
        if isinstance(answer, Mistaken):
            return answer.problem
        if not isinstance(answer, Understood):
            raise _failed("The broker cannot start", answer)
        return None

    def begin(self, identity: Identity, state: Path, certificates: tuple[bytes, ...]) -> None:
        """Let it become `identity` and make itself ready. Raises LaunchError or OSError."""
        begin = Begin(uid=identity.uid, gid=identity.gid, state=os.fsencode(state), certificates=certificates)
        content = os.memfd_create("wicketgate", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(content), "wb") as file:
                file.write(encode_begin(begin))
            self._send(b"begin", [content])
        finally:
            os.close(content)
        self.begun = True

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
        """Close the lease and wait for the process; it has nothing left to do. The second time nothing happens."""
        self.connection.close()
        pid, self.pid = self.pid, 0
        if not pid:
            return
        pidfd = os.pidfd_open(pid)
        try:
            if not self.begun or not select.select([pidfd], [], [], PATIENCE)[0]:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        finally:
            os.close(pidfd)

    def _ask(self, message: FromRunner, descriptors: list[int] | None = None) -> FromBroker:
        self._send(encode(message), descriptors)
        return self._answer()

    def _answer(self) -> FromBroker:
        decoded: FromBroker = decode_from_broker(self._receive())
        return decoded

    def _send(self, message: bytes, descriptors: list[int] | None) -> None:
        try:
            handoff.send(self.connection, message, descriptors)
        except OSError as error:
            raise _GONE from error

    def _receive(self) -> bytes:
        try:
            if not select.select([self.connection], [], [], PATIENCE)[0]:
                raise _GONE
            answer, _ = handoff.receive(self.connection)
        except OSError as error:
            raise _GONE from error
        if not answer:
            raise _GONE
        return answer


def broker_refused(answer: FromBroker) -> LaunchError:
    """The error of an answer that is no `Attached`."""
    return _failed("The broker refused the session", answer)


def _failed(what: str, answer: FromBroker) -> LaunchError:
    return LaunchError(Code.BROKER_FAILED, f"{what}: {_detail(answer)}.", _CURE)


def _detail(answer: FromBroker) -> str:
    return answer.detail if isinstance(answer, Rejected | Ended) else "it answered another question"


def start_broker(words: Words) -> OwnBroker:
    """Fork it, and let it load what it needs. It is told the rest by `begin`. Raises OSError."""
    return OwnBroker(*fork_broker(words))
