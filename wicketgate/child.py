"""The first steps of a process that the broker forks without executing anything: it has no right, and dies with it."""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from netns import kernel


def go_on_as(what: str, parent: int, run: Callable[[], None]) -> NoReturn:
    """Be the forked child `what`: run, and end. `parent` is a pidfd of whoever forked it, made before."""
    status = 1
    try:
        # It ends when its parent does: a service manager's signals are for the daemon, which ends cleanly.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.drop_capabilities(bounding=False)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # others have the same user: they must not be able to steer this one
        kernel.die_with_parent()
        if not select.select([parent], [], [], 0)[0]:
            os.close(parent)
            run()
        status = 0
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"wicketgate: {what} failed: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
    os._exit(status)
