"""Forked ahead: a process that waits for the next sandbox, or for one further command of a session."""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from netns import handoff, kernel
from sandbox.births import Birth, Entry
from sandbox.execution import join
from sandbox.starter.messages import Document, format_birth, format_entry, hear, parse_birth, parse_entry, read, tell

NEXT_NAME: Final = "wicketgate-next"  # in /proc/PID/comm
_NO_BIRTH: Final = Birth(argv=(), bwrap_fd=0, descriptors={0: 0})
_NO_ENTRY: Final = Entry(init=0, parent=0, argv=(), environment=(), directory="", seccomp=b"", rlimits=(), stdio={0: 0})


def wait_for_birth(channel: int) -> Birth:
    """Hear of the next sandbox, in the process that waits for it. Ends it where none comes."""
    kernel.raise_descriptors()  # whoever comes must not fail for a bound that held when this one was forked
    kernel.keep_descriptors({0, 1, 2, channel})
    kernel.set_name(NEXT_NAME)
    _rehearse(format_birth(_NO_BIRTH)[0], parse_birth)
    what, descriptors = hear(socket.socket(fileno=channel))
    if not what:
        os._exit(0)
    if not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "start")
    return parse_birth(read(descriptors[0]), descriptors[1:])


def wait_for_entry(groups: Sequence[str], channel: int) -> NoReturn:
    """Go into the groups, wait for one entry, and start that."""
    try:
        kernel.keep_descriptors({0, 1, 2, channel})
        for group in groups:
            Path(group).write_text(str(os.getpid()))
        _rehearse(format_entry(_NO_ENTRY, (), 0)[0], parse_entry)
        what, descriptors = hear(socket.socket(fileno=channel))
        if what:
            entry, reset, report = parse_entry(read(descriptors[0]), descriptors[1:])
            join(entry._replace(groups=()), reset, report)
    except BaseException:  # noqa: BLE001, S110  a forked child ends here; whoever waits for it sees its end
        pass
    os._exit(125)


def _rehearse(document: Document, understand: Callable[[Document, list[int]], object]) -> None:
    """Hear once what means nothing. To a process that was just forked every page that it touches is copied first, and
    what was done once ahead need not be waited for later.
    """
    near, far = handoff.pair()
    with near, far, Path(os.devnull).open("rb") as nothing:
        tell(near, "rehearse", document, [nothing.fileno()] * 2)
        _, descriptors = hear(far)
        understand(read(descriptors[0]), descriptors[1:])
        for fd in descriptors:
            os.close(fd)
