"""The keeper: a process that outlives a killed server and ends what the kernel does not end: the held names.

It is forked before the server enters its namespaces, is told of each hold before anything is made (`take`) and of each
sandbox before its program is executed (`announce`), and waits. When every end of the server's connection has closed, it
kills the sandboxes that were announced, waits until they are gone, and only then does what a normal end does: `settle`
and `Hold.release`. A server that ended well has given everything up, and the keeper has nothing to do.

It keeps no descriptor but its own, no terminal and no signal but SIGKILL. Whoever needs one ends when it does.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import structs

from netns import handoff, kernel
from sandbox.errors import Code, LaunchError
from sandbox.protect.hold import Hold
from sandbox.protect.settle import settle
from sandbox.protect.survey import Survey

NAME = "wicketgate-keep"  # in /proc/PID/comm
ANNOUNCED = b"sandbox"
MAX_SURVEY = 1 << 30
PATIENCE = 10  # seconds that a message to it may wait for room
STANDS_STILL = 2.0  # seconds after which it may have been stopped


class Keeper(msgspec.Struct):
    """The server's side of a started keeper. `pid` is a child of the process that started it."""

    pid: int
    connection: socket.socket
    _last: int = 0

    def take(self, hold: Hold, found: Survey) -> Callable[[], None]:
        """Have a hold kept that is about to be made; how to give it up. Raises LaunchError: then do not make it."""
        self._last += 1
        content = os.memfd_create("survey", os.MFD_CLOEXEC)  # larger than a message may be
        try:
            with os.fdopen(os.dup(content), "wb") as file:
                file.write(format_survey(found))
            message = json.dumps({"take": self._last, "place": str(hold.place)}).encode()
            handoff.send(self.connection, message, [hold.root, hold.lock, content])
        except (OSError, handoff.HandoffError) as error:
            raise LaunchError(
                Code.KEEPER_GONE,
                "The process that would clean up after this one has gone or stands still, "
                "and without it no workspace is touched.",
                "Start it again.",
            ) from error
        finally:
            os.close(content)
        return partial(self._give_up, self._last)

    def _give_up(self, number: int) -> None:
        """The hold was released; nothing of it is left to do."""
        with contextlib.suppress(OSError):  # a keeper that has gone has nothing to do either
            handoff.send(self.connection, json.dumps({"give_up": number}).encode())

    def announce(self) -> None:
        """Called in a sandbox's own process 1, before it executes anything. Raises OSError: then it must not."""
        handoff.announce(self.connection, ANNOUNCED)

    def stop(self) -> None:
        """Let it end, and wait until it has done what was left to do. For the process that started it.

        One that somebody has stopped is set going: else it would be waited for without an end.
        """
        self.connection.close()
        ended = os.pidfd_open(self.pid)
        try:
            while not select.select([ended], [], [], STANDS_STILL)[0]:
                os.kill(self.pid, signal.SIGCONT)
        finally:
            os.close(ended)
        os.waitpid(self.pid, 0)


def start_keeper(last: Callable[[], None] | None = None) -> Keeper:
    """Fork a keeper. Call it as the serving user, in the mount namespace in which the state directory is found.

    `last`: what to do when everything of a server that was killed is over.
    """
    mine, theirs = handoff.pair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE, 0))
    pid = os.fork()
    if pid == 0:
        _be_keeper(theirs, last)
    theirs.close()
    return Keeper(pid, mine)


class _Kept(msgspec.Struct):
    """What the keeper has been told. `sandboxes` are pidfds."""

    holds: dict[int, tuple[Hold, bytes]] = msgspec.field(default_factory=dict)
    sandboxes: set[int] = msgspec.field(default_factory=set)


def _be_keeper(connection: socket.socket, last: Callable[[], None] | None) -> NoReturn:
    status = 1
    try:
        gc.disable()  # a collection would touch, and so copy, every page that it shares with the server
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        kernel.keep_descriptors({connection.fileno()})
        os.chdir("/")
        _take_rights()
        kept = _Kept()
        with select.epoll() as poll:  # what waits for many sandboxes must not ask about all of them each time
            poll.register(connection, select.EPOLLIN)
            while _listen(connection, kept, poll):
                pass
        _end_sandboxes(kept.sandboxes)
        for kept_hold, found in kept.holds.values():
            _end_hold(kept_hold, found)
        if last is not None:
            last()
        status = 0
    except BaseException:  # noqa: BLE001, S110  a forked child ends here, whatever happened; it has nobody to tell
        pass
    os._exit(status)


def _take_rights() -> None:
    """Be as able as the server, who looks into a directory of its user's that nobody may read; no more than that."""
    with contextlib.suppress(OSError):  # where the kernel refuses one no sandbox is ever started, and nothing is held
        kernel.enter_user_namespace()
    Path("/proc/self/comm").write_text(NAME)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(connection: socket.socket, kept: _Kept, poll: select.epoll) -> bool:
    """Wait for something to happen; False when the server has gone. Raises what the keeper must end for."""
    ready = {fd for fd, _ in poll.poll()}
    for fd in ready & kept.sandboxes:  # it has ended
        kept.sandboxes.discard(fd)
        poll.unregister(fd)
        os.close(fd)
    if connection.fileno() not in ready:
        return True
    message, descriptors = handoff.receive(connection)
    if message == ANNOUNCED:
        for fd in descriptors:
            kept.sandboxes.add(fd)
            poll.register(fd, select.EPOLLIN)
    elif message:
        _note(json.loads(message), descriptors, kept)
    return bool(message)


def _note(document: dict[str, Any], descriptors: list[int], kept: _Kept) -> None:
    if "take" in document:
        root, lock, content = descriptors
        with os.fdopen(content, "rb") as file:
            file.seek(0)
            found = file.read(MAX_SURVEY)
        kept.holds[document["take"]] = Hold(root=root, lock=lock, place=Path(document["place"])), found
    else:
        hold, _ = kept.holds.pop(document["give_up"])
        os.close(hold.root)
        os.close(hold.lock)


def _end_sandboxes(sandboxes: set[int]) -> None:
    """They die with the server; a descriptor tells when the last process in one has gone (pid_namespaces(7))."""
    for fd in sandboxes:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    for fd in sandboxes:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()


def _end_hold(hold: Hold, found: bytes) -> None:
    with contextlib.suppress(Exception):  # one that cannot be looked after must not keep the others
        settle(hold.root, parse_survey(found))
    with contextlib.suppress(Exception):
        hold.release()


def format_survey(found: Survey) -> bytes:
    """A survey as a message; names that are no text are kept."""
    return json.dumps(structs.asdict(found) | {"identities": sorted(found.identities)}).encode()


def parse_survey(content: bytes) -> Survey:
    """What `format_survey` wrote."""
    document = json.loads(content)
    return Survey(
        git_directories=tuple(document["git_directories"]),
        frozen=tuple(document["frozen"]),
        absent=tuple(document["absent"]),
        complete=document["complete"],
        since=document["since"],
        identities=frozenset((path, inode) for path, inode in document["identities"]),
        configurations=tuple((path, text) for path, text in document["configurations"]),
    )
