"""A session's attachment to a running broker, from the runner's side: attach, notice the end, attach again.

The broker holds the only copies of a bridge's listeners. When it dies they are gone, and the sandbox has no network in
that very moment; nothing here has to see to it. What this does is the way back: new listeners in the same bridge, on
the port that its rules name, under the same session id and grant.
"""

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from broker.control.messages import (
    MAX_MESSAGE,
    Attach,
    Attached,
    Ended,
    Finish,
    Finished,
    FromBroker,
    Greeting,
    Rejected,
    decode_from_broker,
    encode,
    may_attach_again,
)
from netns import handoff
from netns.bridge import Bridge
from netns.listeners import Listeners

PATIENCE: Final = 30.0  # seconds for each answer; one that ended is seen at once
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class AttachError(Exception):
    """The broker does not serve the session. `reason` is its code; empty where there was no answer."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}" if reason else detail)
        self.reason = reason
        self.detail = detail

    @property
    def is_final(self) -> bool:
        """Whether trying again is of no use."""
        return not may_attach_again(self.reason)


class State(Enum):
    """Whether the sandbox has its cable."""

    DETACHED = "detached"  # no network; a further attempt is made, unless it never attached
    ATTACHED = "attached"
    OVER = "over"  # finished, or given up for good


@dataclass(slots=True, kw_only=True)
class Attachment:
    """One session's lease on a broker, renewed for as long as the session lives.

    `await attach()` once, then the attachment looks after itself until `finish` or `close`. `authority` holds the
    broker's CA certificates (PEM) after the first attempt that was greeted. `on_change` is called with each new state
    and why. The bridge's listeners belong to the attachment from `attach` on.
    """

    bridge: Bridge
    socket_path: Path
    session: str
    call: str = ""
    grant: str = ""
    on_change: Callable[[State, str], None] = lambda _state, _why: None
    state: State = State.DETACHED
    authority: bytes = b""
    attached_times: int = 0
    _connection: socket.socket | None = None
    _watch: asyncio.Task[None] | None = None

    async def attach(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Attach for the first time. Raises `AttachError`: then nothing was begun, and it may be called again.

        `meanwhile` is called when `authority` is known and the broker decides; what it raises ends the attempt.
        """
        await self._attach(meanwhile)
        self._watch = asyncio.create_task(self._keep())

    async def finish(self) -> Finished | None:
        """End the session; the broker's counts, or None where it is not attached at the moment."""
        await self._stop_watching()
        connection = self._connection
        finished = None
        if connection is not None:
            with contextlib.suppress(AttachError, OSError):
                refused = self.bridge.count_refused()
                handoff.send(connection, encode(Finish(refused=refused)))
                answer = await self._receive(connection)
                finished = answer if isinstance(answer, Finished) else None
        self._end("finished")
        return finished

    async def close(self) -> None:
        """Let go without an answer; the broker ends the session."""
        await self._stop_watching()
        self._end("closed")

    async def _attach(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        connection = await self._connect()
        try:
            greeting = await self._receive(connection)
            if not isinstance(greeting, Greeting):
                raise _as_error(greeting)
            self.authority = greeting.authority.encode()
            listeners = await self._listeners()
            try:
                message = encode(Attach(session=self.session, call=self.call, grant=self.grant))
                handoff.send(connection, message, listeners.descriptors())
            except OSError as error:
                raise AttachError("", f"the broker went away: {error.strerror}") from error
            finally:
                listeners.close()  # the broker's copies are the only ones from here on
            meanwhile()
            answer = await self._receive(connection)
            if not isinstance(answer, Attached):
                raise _as_error(answer)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self.attached_times += 1
        self._change(State.ATTACHED, "")

    async def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.get_running_loop().sock_connect(connection, str(self.socket_path))
        except (OSError, TimeoutError) as error:
            connection.close()
            why = getattr(error, "strerror", None) or "no answer"
            raise AttachError("", f"no broker at {self.socket_path}: {why}") from error
        return connection

    async def _listeners(self) -> Listeners:
        """The bridge's own on the first attempt, new ones on the same port later."""
        if self.bridge.listeners.capture.fileno() < 0:
            try:
                self.bridge.listeners = await _in_thread_of_its_own(self.bridge.reopen_listeners)
            except OSError as error:
                raise AttachError("", f"the bridge takes no listeners: {error.strerror}") from error
        return self.bridge.listeners

    async def _receive(self, connection: socket.socket) -> FromBroker:
        try:
            async with asyncio.timeout(PATIENCE):
                message = await asyncio.get_running_loop().sock_recv(connection, MAX_MESSAGE)
            decoded: FromBroker = decode_from_broker(message)
        except TimeoutError as error:
            raise AttachError("", f"no answer within {PATIENCE:g} s") from error
        except (OSError, msgspec.DecodeError) as error:
            raise AttachError("", "the broker went away") from error
        return decoded

    async def _keep(self) -> None:
        """Wait for the end of the lease, then come back; until the session ends, or coming back is refused for good."""
        pause = FIRST_PAUSE
        error = await self._ended()
        while not error.is_final:
            # Many runners wait for one broker: they must not all come at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  spreads attempts, decides nothing
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                await self._attach()
            except AttachError as refused:
                error = refused
                continue
            pause = FIRST_PAUSE
            error = await self._ended()
        self._end(str(error))

    async def _ended(self) -> AttachError:
        """Wait until the broker ends the lease; why it did."""
        connection = self._connection
        assert connection is not None
        try:
            message = await asyncio.get_running_loop().sock_recv(connection, MAX_MESSAGE)
            error = _as_error(decode_from_broker(message)) if message else AttachError("", "the broker went away")
        except (OSError, msgspec.DecodeError):
            error = AttachError("", "the broker went away")
        self._connection = None
        connection.close()
        self._change(State.DETACHED, str(error))
        return error

    async def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None

    def _end(self, why: str) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.bridge.listeners.close()
        if self.state is not State.OVER:
            self._change(State.OVER, why)

    def _change(self, state: State, why: str) -> None:
        self.state = state
        self.on_change(state, why)


def _as_error(answer: FromBroker) -> AttachError:
    match answer:
        case Rejected(reason, detail) | Ended(reason, detail):
            return AttachError(reason, detail)
        case _:
            return AttachError("", "the broker broke its protocol")


async def _in_thread_of_its_own[T](work: Callable[[], T]) -> T:
    """Run something that moves its thread into another network namespace; the thread ends with it (setns(2))."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            if isinstance(result, Listeners):
                result.close()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    threading.Thread(target=run, name="bridge", daemon=True).start()
    return await done
