"""How the process comes into being: as a program of its own, or else as a copy of the runner."""

import contextlib
import os
import select
import signal
import socket
import sys
from typing import Final, NoReturn

from netns import handoff, kernel
from sandbox.execution import go_on_as_interpreter
from sandbox.starter.messages import MAX_ANSWER, READY
from sandbox.starter.orders import RunnersStarter
from sandbox.starter.process import Serving

READY_SECONDS: Final = 10.0
_CODE: Final = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n');"
    " from sandbox.starter import process; process.main(*sys.argv[2:])"
)


def start_starter(keeper: socket.socket, announced: bytes) -> RunnersStarter:
    """Start it, and wait until it can serve. Call it in the first process of a pid namespace, without threads.

    `announced`: what each sandbox tells on the keeper's connection before it executes anything. Raises OSError.
    """
    for is_own_program in (True, False):
        near, far = handoff.pair()
        pid = os.fork()
        if pid == 0:
            near.close()
            _be_starter(far, keeper, announced, is_own_program=is_own_program)
        far.close()
        if _is_ready(near):
            starter = RunnersStarter(pid, near)
            starter.expect_birth()
            return starter
        near.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    raise OSError(0, "the process that starts commands cannot be started")


def _is_ready(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(READY_SECONDS * 1000)) and channel.recv(MAX_ANSWER) == READY


def _be_starter(channel: socket.socket, keeper: socket.socket, announced: bytes, *, is_own_program: bool) -> NoReturn:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if is_own_program:
            kernel.hand_capabilities_on()
            go_on_as_interpreter(
                _CODE,
                "\n".join(path for path in sys.path if path),
                *(str(one.fileno()) for one in (channel, keeper)),
                announced.decode(),
                keep={channel.fileno(), keeper.fileno()},
            )
            os._exit(1)
        kernel.keep_descriptors({0, 1, 2, channel.fileno(), keeper.fileno()})
        Serving(channel, keeper, announced).run()
    except BaseException:  # noqa: BLE001, S110  a forked child ends here; whoever waits for it sees its end
        pass
    os._exit(1)
