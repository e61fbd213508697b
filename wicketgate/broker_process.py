"""The process of a run's own broker: it has the network and no right over the sandbox's namespaces.

It is forked before the run has loaded what it needs itself, so that both load their modules at once. It reads what is
allowed, says whether that means anything, and waits for the word to begin; until then it makes nothing. Then it drops
to the serving user, enters a user namespace beside the runner's, so that not even being the same user gives it a
capability there, drops all capabilities, and serves. It ends when its run does.
"""

import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from broker.control.messages import Rejected, encode
from netns import handoff, kernel
from wicketgate.identity import Identity
from wicketgate.memory import settle_memory
from wicketgate.rules import RulesError, Words, understand

LONGEST: Final = 10_000  # characters of what is said: whatever they are, a message takes them


class Understood(msgspec.Struct, tag="understood", frozen=True):
    """Broker → run, first: what was typed means something."""


class Mistaken(msgspec.Struct, tag="mistaken", frozen=True):
    """Broker → run, first and last: it means nothing, and why."""

    problem: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """Run → broker: serve from now on, as this user. In a file in memory, since it may be longer than a message.

    `state`: the directory that holds the log. `certificates`: PEM texts that upstreams may be trusted by too.
    """

    uid: int
    gid: int
    state: bytes
    certificates: tuple[bytes, ...]


encode_begin = msgspec.msgpack.Encoder().encode
decode_begin = msgspec.msgpack.Decoder(Begin).decode
decode_understood = msgspec.json.Decoder(Understood | Mistaken | Rejected).decode


def fork_broker(words: Words) -> tuple[int, socket.socket]:
    """Its pid, and the run's end of the connection. Raises OSError."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by the caller, it would take the child's status away
    mine, theirs = handoff.pair()
    parent = os.pidfd_open(os.getpid())
    try:
        pid = os.fork()
        if pid == 0:
            mine.close()
            _be_broker(theirs, words, parent)
    except BaseException:
        mine.close()
        raise
    finally:
        theirs.close()
        os.close(parent)
    return pid, mine


def _be_broker(connection: socket.socket, words: Words, parent: int) -> NoReturn:
    status = 1
    try:
        kernel.die_with_parent()  # and again below: a change of user clears it
        os.setsid()  # the terminal's signals are for the payload
        _detach(connection, parent)
        rules = understand(words)
        handoff.send(connection, encode(Understood()))
        # In this process only, and while the run loads its own.
        from broker.control.settings import Settings  # noqa: PLC0415
        from broker.gateway.serve import preload, serve_one  # noqa: PLC0415

        begin = _wait_to_begin(connection)
        identity = Identity(begin.uid, begin.gid)
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
        settings = Settings(
            policy=rules.policy,
            state=Path(os.fsdecode(begin.state)),
            certificates=begin.certificates,
            fixed=rules.fixed,
        )
        settle_memory()
        serve_one(connection, settings)
        status = 0
    except RulesError as error:
        with contextlib.suppress(OSError, handoff.HandoffError):
            handoff.send(connection, encode(Mistaken(_sayable(str(error)))))
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        _complain(connection, error)
    finally:
        os._exit(status)


def _wait_to_begin(connection: socket.socket) -> Begin:
    """The word to begin. Ends this process where none comes: the run was refused."""
    _, descriptors = handoff.receive(connection)
    if not descriptors:
        os._exit(0)
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        begin: Begin = decode_begin(file.read())
    return begin


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
        handoff.send(connection, encode(Rejected("broker_failed", _sayable(detail) or type(error).__name__)))


def _sayable(text: str) -> str:
    """As a message can carry it: the name of a file may be any bytes."""
    return text[:LONGEST].encode(errors="backslashreplace").decode()


def _detach(connection: socket.socket, parent: int) -> None:
    """Keep the attach connection and standard error, nothing else of the runner's."""
    kernel.keep_descriptors({2, connection.fileno(), parent})
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
