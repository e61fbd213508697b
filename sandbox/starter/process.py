"""The process itself: it forks what it is told to fork, until the runner has gone."""

import contextlib
import errno
import gc
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from netns import handoff, joining, kernel
from sandbox.births import Birth
from sandbox.execution import become_bwrap, join
from sandbox.starter.messages import READY, hear, parse_birth, parse_entry, read
from sandbox.starter.waiting import wait_for_birth, wait_for_entry

NAME: Final = "wicketgate-fork"  # in /proc/PID/comm


def main(channel: str, keeper: str, announced: str) -> NoReturn:
    """What the interpreter of its own begins with."""
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # others have the same user: they must not be able to steer this one
        kernel.keep_capabilities_to_oneself()
        ends = [socket.socket(fileno=int(number)) for number in (channel, keeper)]
        for end in ends:
            end.set_inheritable(False)
        Serving(ends[0], ends[1], announced.encode()).run()
    except BaseException:  # noqa: BLE001, S110  nobody to tell: the runner sees its end
        pass
    os._exit(1)


class Serving:
    """The process itself."""

    def __init__(self, channel: socket.socket, keeper: socket.socket, announced: bytes) -> None:
        self._channel = channel
        self._keeper, self._announced = keeper, announced
        self._runner = os.pidfd_open(os.getppid())
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve until the runner has gone."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what expects a move
        gc.disable()  # a collection touches, and so copies, every page that is shared with a child; nothing is cyclic
        kernel.set_name(NAME)
        os.unshare(os.CLONE_NEWPID)  # it has the right
        os.setns(self._own, os.CLONE_NEWPID)
        self._channel.send(READY)
        while True:
            what, descriptors = hear(self._channel)
            if not what:
                return
            try:
                self._obey(what, descriptors)
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _obey(self, what: bytes, descriptors: list[int]) -> None:
        answer: dict[str, Any]
        if what == b"expect":  # the only one that is not answered
            if descriptors:
                expect_a_move(read(descriptors[0])["group"])
            return
        if not descriptors:
            answer = {"failed": errno.EMFILE, "step": "start"}
            self._channel.send(json.dumps(answer).encode())
            return
        content, *others = descriptors
        document = read(content)
        try:
            match what:
                case b"bear":
                    pid = self._bear(lambda: parse_birth(document, others))
                case b"await":
                    pid = self._bear(lambda: wait_for_birth(others[0]))
                case b"join":
                    pid = joining.clone_sibling()
                    if pid == 0:
                        join(*parse_entry(document, others))
                case _:
                    pid = joining.clone_sibling()
                    if pid == 0:
                        wait_for_entry(document["groups"], others[0])
            answer = {"pid": pid}
        except OSError as error:
            answer = {"failed": error.errno or 0, "step": str(error.filename or "start")}
        self._channel.send(json.dumps(answer).encode())

    def _bear(self, hear_birth: Callable[[], Birth]) -> int:
        os.unshare(os.CLONE_NEWPID)
        try:
            pid = joining.clone_sibling()
            if pid == 0:
                become_bwrap(hear_birth, parent=self._runner, announce=self._announce)
        finally:
            os.setns(self._own, os.CLONE_NEWPID)
        return pid

    def _announce(self) -> None:
        handoff.announce(self._keeper, self._announced)


def expect_a_move(group: str) -> None:
    """Have the kernel make ready for a move into a control group, while something else is done.

    The first move after a while waits until every processor has taken notice (a grace period of RCU: 10 ms and more),
    one shortly after it does not. So a child moves itself, and ends. It is the runner that moves what is to be bounded;
    whether this helps it or fails is nobody's concern.
    """
    with contextlib.suppress(OSError):
        if os.fork() == 0:
            with contextlib.suppress(OSError):
                Path(group).write_text(str(os.getpid()))
            os._exit(0)
