"""`wicketgate runner`: everything that has to be done before the runner serves, in the only order that works.

Read the configuration and look at the host's owners as whoever started it; become the serving user; lock and open the
socket; fork twice. The parent is the gate and stays outside, and so does the keeper. The other child enters user,
mount, network, cgroup and pid namespaces of its own and forks once more: the runner is process 1 of that pid namespace,
so whatever kills it, or the gate it is tied to, ends every sandbox by the kernel. The keeper then does what the kernel
does not: it gives the held names of workspaces up.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import traceback
from functools import partial
from typing import NoReturn

import uvloop
from msgspec import structs

from netns import joining, kernel, mounts
from sandbox.errors import Code, LaunchError
from sandbox.protect import ANNOUNCED, Keeper, start_keeper
from sandbox.starter.start import start_starter
from wicketgate.runner.config import SOCKET_NAME
from wicketgate.runner.gate import Gate
from wicketgate.runner.place import forget_socket, listen, take_lock
from wicketgate.runner.prepared import Prepared, prepare
from wicketgate.runner.readiness import Readiness
from wicketgate.runner.serving import serve
from wicketgate.speech import say


def run_runner(file: str) -> int:
    """Serve until told to end; the exit code. Raises ConfigError or LaunchError where it cannot start."""
    # More than any payload's: the kernel counts those in flight by user and refuses whoever may have less (unix(7)).
    kernel.raise_descriptors()
    prepared = prepare(file)
    lock = take_lock(prepared.runtime)
    keeper = start_keeper(partial(forget_socket, prepared.runtime))  # before anything is made that it removes
    listener = listen(prepared.runtime / SOCKET_NAME, prepared.admitted)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signal.pthread_sigmask(signal.SIG_BLOCK, joining.PASSED_ON)
    gate = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        near.close()
        listener.close()
        os.close(lock)
        _be_runner(prepared, far, gate, keeper)
    far.close()
    keeper.connection.close()
    os.close(gate)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities(bounding=False)
    # A payload has the same user outside: it must not be able to steer this one.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    code = Gate(listener, near, prepared.admitted, pid, keeper.pid).run()
    with contextlib.suppress(OSError):
        (prepared.runtime / SOCKET_NAME).unlink()
    keeper.stop()
    return code


def _be_runner(prepared: Prepared, channel: socket.socket, gate: int, keeper: Keeper) -> NoReturn:
    status = 1
    try:
        os.setsid()  # a terminal that the gate was started on is nobody's in here
        prepared = structs.replace(prepared, ready=_enter_namespaces(prepared.ready, gate))
        if (problem := prepared.ready.problem()) is not None:
            say(f"no sandbox is started here: {problem}")
        starter = None if prepared.ready.refused else start_starter(keeper.connection, ANNOUNCED)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(prepared, channel, keeper, starter))
        status = 0
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        with contextlib.suppress(OSError, ValueError):
            if os.environ.get("WICKETGATE_DEBUG") == "1":
                traceback.print_exception(error)
            sys.stderr.write(f"wicketgate: the runner does not run: {error}\n")
            sys.stderr.flush()
    os._exit(status)


def _enter_namespaces(ready: Readiness, gate: int) -> Readiness:
    """Enter them; where the kernel refuses, no sandbox is ever started, which is what is returned."""
    entered = True
    try:
        kernel.enter_user_namespace(
            os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS
        )
    except OSError as error:
        entered = False
        refused = LaunchError(
            Code.NO_USER_NAMESPACES,
            f"The kernel refuses a user namespace ({kernel.explain_namespaces(error)}).",
            "`wicketgate doctor` names the layer that forbids it and what to change; then start the runner again.",
        )
        ready = Readiness(host=ready.host, refused=ready.refused or refused)
    kernel.die_with_parent()
    if joining.has_ended(gate):
        os._exit(1)  # it died before the line above took effect
    os.close(gate)
    if entered:
        joining.become_first_process()
        mounts.mount_processes()
    # Whatever a payload may find out about its user's other processes, this one tells nothing.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return ready
