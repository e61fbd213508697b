"""The broker's door: a process beside it that lets peers in and reads the policy file, and does nothing else.

It exists because the broker lives in a user namespace of its own, where every other user looks like the same nobody:
there, neither the credentials of a peer (SO_PEERCRED, unix(7)) nor the owner of a file can be told. The door stays
outside, asks the kernel, and hands over connections with what it was told. It keeps each until the broker says that it
has it: what a process without descriptors is sent is lost (SCM_RIGHTS, unix(7)), and then the door answers. It has no
network to speak of and no right.
"""

import array
import contextlib
import errno
import itertools
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.api.callers import peer_credentials
from broker.api.faults import ApiError
from broker.api.unserved import Unserved, as_response
from broker.control.faults import Fault
from broker.control.messages import MAX_MESSAGE, Rejected
from broker.control.messages import encode as encode_for_runner
from broker.policy.load import PolicyError, read_trusted
from broker.policy.problems import Problem

_PAUSE: Final = 0.05  # seconds without descriptors before accepting is tried again
_REPORT: Final = 1.0  # seconds between reports of refused peers: a stranger must not fill the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use a socket, by number."""

    uids: frozenset[int]
    gids: frozenset[int] = frozenset()


class Peer(msgspec.Struct, tag="peer", frozen=True, kw_only=True):
    """Door → broker: a connection to the socket `role` was let in, and comes with this message.

    The broker answers with its number: `Told`.
    """

    number: int
    role: str
    uid: int
    gid: int
    pid: int


class Refused(msgspec.Struct, tag="refused", frozen=True, kw_only=True):
    """Door → broker: somebody was not let in, the last of `count`."""

    role: str
    uid: int
    gid: int
    pid: int
    count: int


class PolicyText(msgspec.Struct, tag="policy", frozen=True, kw_only=True):
    """Door → broker: the policy file's text comes in a memory file with this message."""


class PolicyRefused(msgspec.Struct, tag="policy_refused", frozen=True, kw_only=True):
    """Door → broker: the policy file cannot be trusted or read."""

    problems: tuple[Problem, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Broker → door: whether it has the connection of this number; `trouble` says why not."""

    number: int
    trouble: str = ""


type FromDoor = Peer | Refused | PolicyText | PolicyRefused

READ_POLICY: Final = b"read the policy"
decode_from_door = msgspec.json.Decoder(Peer | Refused | PolicyText | PolicyRefused).decode
_decode_told = msgspec.json.Decoder(Told).decode
encode_told = _encode = msgspec.json.Encoder().encode


class Door:
    """Serves until the broker's end of `channel` closes."""

    def __init__(
        self, channel: socket.socket, listeners: Mapping[str, socket.socket], access: Mapping[str, Access], policy: str
    ) -> None:
        self._channel = channel
        self._listeners = listeners
        self._access = access
        self._policy = policy
        self._selector = selectors.DefaultSelector()
        self._refused: dict[str, tuple[float, int]] = {}
        self._unserved = Unserved()
        self._handed: dict[int, tuple[str, socket.socket]] = {}  # the broker has not said that it has it
        self._numbers = itertools.count()

    def run(self) -> None:
        """Return when the broker has gone."""
        self._selector.register(self._channel, selectors.EVENT_READ)
        for role, listener in self._listeners.items():
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, role)
        with contextlib.suppress(OSError):  # the channel breaks when the broker dies
            while True:
                for key, _ in self._selector.select():
                    if key.data is not None:
                        self._accept(key.data)
                    elif not self._answer():
                        return

    def _answer(self) -> bool:
        request = self._channel.recv(MAX_MESSAGE)
        if request == READ_POLICY:
            self._read_policy()
        elif request:
            told = _decode_told(request)
            role, connection = self._handed.pop(told.number)
            if told.trouble:
                self._unserved.answer(connection, _NOT_TAKEN[role](told.trouble))
            else:
                connection.close()
        return bool(request)

    def _read_policy(self) -> None:
        try:
            content = read_trusted(self._policy).encode()
        except PolicyError as error:
            self._send(PolicyRefused(problems=error.problems))
            return
        with os.fdopen(os.memfd_create("policy", os.MFD_CLOEXEC), "wb") as file:
            file.write(content)
            file.flush()
            try:
                self._send(PolicyText(), file.fileno())
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                problem = Problem(found=f"cannot be handed over: {error.strerror}", expected="fewer in flight")
                self._send(PolicyRefused(problems=(problem,)))

    def _accept(self, role: str) -> None:
        try:
            connection, _ = self._listeners[role].accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_PAUSE)  # no descriptors, or that one connection has gone
            return
        try:
            pid, uid, gid, groups = peer_credentials(connection)
        except OSError:
            connection.close()
            return
        if is_let_in(self._access[role], uid, frozenset((gid, *groups))):
            self._hand_over(connection, Peer(number=next(self._numbers), role=role, uid=uid, gid=gid, pid=pid))
        else:
            self._refuse(connection, role, uid, gid, pid)

    def _hand_over(self, connection: socket.socket, peer: Peer) -> None:
        try:
            self._send(peer, connection.fileno())
        except ConnectionError:
            connection.close()
            raise  # it was the channel
        except OSError as error:  # too many descriptors of this user are in flight
            self._unserved.answer(
                connection, _NOT_TAKEN[peer.role](f"the broker could not be given the connection ({error.strerror})")
            )
        else:
            self._handed[peer.number] = peer.role, connection

    def _refuse(self, connection: socket.socket, role: str, uid: int, gid: int, pid: int) -> None:
        self._unserved.answer(connection, _REFUSALS[role](uid))
        last, count = self._refused.get(role, (0.0, 0))
        now = time.monotonic()
        if now - last >= _REPORT:
            self._refused[role] = (now, 0)
            self._send(Refused(role=role, uid=uid, gid=gid, pid=pid, count=count + 1))
        else:
            self._refused[role] = (last, count + 1)

    def _send(self, message: FromDoor, *descriptors: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._channel.sendmsg([_encode(message)], rights)


def is_let_in(access: Access, uid: int, gids: frozenset[int]) -> bool:
    """Whether a peer may use a socket."""
    return uid in access.uids or not access.gids.isdisjoint(gids)


def _refusal_by_http(uid: int) -> bytes:
    error = ApiError(
        Fault.PEER_REFUSED, f"User {uid} may not use the control socket; the broker's configuration says who."
    )
    return as_response(error)


def _refusal_by_message(uid: int) -> bytes:
    return encode_for_runner(Rejected("peer_refused", f"user {uid} may not use the attach socket"))


def _not_taken_by_http(trouble: str) -> bytes:
    return as_response(ApiError(Fault.NOT_TAKEN, f"{trouble.capitalize()}. The request was not read; try again later."))


def _not_taken_by_message(trouble: str) -> bytes:
    return encode_for_runner(Rejected("not_taken", trouble))


CONTROL, ATTACH = "control", "attach"
_REFUSALS = {CONTROL: _refusal_by_http, ATTACH: _refusal_by_message}
_NOT_TAKEN = {CONTROL: _not_taken_by_http, ATTACH: _not_taken_by_message}
