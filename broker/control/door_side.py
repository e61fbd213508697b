"""The broker's side of the door: peers that were let in or refused, and the text of the policy file."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

from broker.control.door import (
    READ_POLICY,
    Peer,
    PolicyRefused,
    PolicyText,
    Refused,
    Told,
    decode_from_door,
    encode_told,
)
from broker.control.messages import MAX_MESSAGE
from broker.policy.problems import PolicyError, Problem

PEERS_A_TURN: Final = 64


class DoorSide:
    """The broker's side of the door."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._answers: asyncio.Queue[str | PolicyError | ConnectionError] = asyncio.Queue()
        self._asking = asyncio.Lock()
        self.gone = asyncio.Event()
        self.on_peer: Callable[[Peer, socket.socket], None] = self._not_yet
        self.on_refused: Callable[[Refused], None] = lambda _: None
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel.fileno(), self._read)

    async def read_policy(self) -> str:
        """The policy file's text. Raises `PolicyError`; `ConnectionError` where the door has gone."""
        async with self._asking:
            if self.gone.is_set():
                raise ConnectionError("the door has gone")
            self._channel.send(READ_POLICY)
            answer = await self._answers.get()
        if not isinstance(answer, str):
            raise answer
        return answer

    def tell(self, peer: Peer, trouble: str = "") -> None:
        """Say that a peer's connection was taken, or why not: then the door answers it."""
        with contextlib.suppress(OSError):  # the door has gone, or does not read; nobody else comes in then
            self._channel.send(encode_told(Told(number=peer.number, trouble=trouble)))

    def _not_yet(self, peer: Peer, connection: socket.socket) -> None:
        connection.close()
        self.tell(peer, "the broker does not serve yet")

    def close(self) -> None:
        """Let the door end: nobody comes in any more."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()

    def _read(self) -> None:
        for _ in range(PEERS_A_TURN):
            try:
                message, descriptors, _, _ = socket.recv_fds(self._channel, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                for fd in descriptors:
                    os.close(fd)
                asyncio.get_running_loop().remove_reader(self._channel.fileno())
                self._answers.put_nowait(ConnectionError("the door has gone"))
                self.gone.set()
                return
            self._receive(message, list(descriptors))

    def _receive(self, message: bytes, descriptors: list[int]) -> None:
        match decode_from_door(message):
            case Peer() as peer if not descriptors:  # lost on the way (SCM_RIGHTS, unix(7))
                self.tell(peer, "the broker has no file descriptor left")
            case Peer() as peer:
                self.on_peer(peer, socket.socket(fileno=descriptors[0]))
            case PolicyText() if not descriptors:
                problem = Problem(found="cannot be taken over: no descriptor is left", expected="fewer connections")
                self._answers.put_nowait(PolicyError("policy", [problem]))
            case PolicyText():
                with os.fdopen(descriptors[0], "rb") as file:
                    self._answers.put_nowait(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode())
            case PolicyRefused(problems=problems):
                self._answers.put_nowait(PolicyError("policy", problems))
            case Refused() as refused:
                self.on_refused(refused)
