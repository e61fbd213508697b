"""`wicketgate runner`: everything that has to be done before the runner serves, in the only order that works.

Read the configuration and look at the host's owners as whoever started it; become the serving user; lock and open the
socket; fork twice. The parent is the gate and stays outside, and so does the keeper. The other child enters user,
mount, network, cgroup and pid namespaces of its own and forks once more: the runner is process 1 of that pid namespace,
so whatever kills it, or the gate it is tied to, ends every sandbox by the kernel. The keeper then does what the kernel
does not: it gives the held names of workspaces up.
"""

import asyncio
import codecs
import contextlib
import fcntl
import grp
import importlib
import os
import pwd
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import uvloop

from broker.api.callers import Caller
from broker.api.server import ApiServer
from broker.audit.location import NoStateDirectory, default_state_dir
from broker.control.notify import notify
from broker.control.places import NoRuntimeDirectory, default_runtime_dir
from broker.policy.load import read_trusted
from broker.policy.problems import PolicyError
from netns import joining, kernel, mounts
from sandbox import cgroups
from sandbox.cable import return_to
from sandbox.children import Child
from sandbox.errors import Code, LaunchError
from sandbox.ground import Ground, Namespaces
from sandbox.host import UNUSABLE, look_at_host
from sandbox.jobs import Jobs
from sandbox.live import Workshop
from sandbox.lot import Lot
from sandbox.next_bridge import NextBridge
from sandbox.output import readable
from sandbox.parked import shape_of
from sandbox.protect import ANNOUNCED, Keeper, start_keeper, sweep
from sandbox.sessions import Sessions
from sandbox.spec import Authority
from sandbox.starter.orders import RunnersStarter
from sandbox.starter.start import start_starter
from sandbox.terminals import Terminals
from sandbox.workspace import ForbiddenRoots, forbidden_roots
from wicketgate import __version__
from wicketgate.identity import Identity, prepare_state, serving_identity
from wicketgate.runner.admission import Admission
from wicketgate.runner.app import runner_server
from wicketgate.runner.config import SOCKET_NAME, Account, ConfigError, RunnerConfig, parse_config
from wicketgate.runner.gate import NO_DESCRIPTOR, TAKEN, TOO_MANY, Admitted, Gate, decode_peer
from wicketgate.runner.mode import FullAccess
from wicketgate.runner.openapi import openapi_document
from wicketgate.runner.operations import Operations
from wicketgate.runner.readiness import Readiness
from wicketgate.speech import say

BACKLOG = 512
MAX_MESSAGE = 4096
LOCK_NAME, LOCK_SECONDS = "runner.lock", 0.5
USUAL_BROKER = Path("/var/lib/wicketgate")  # its state; no command may reach it, whoever serves it
_LATE = (
    "sandbox.show",
    "sandbox.seccomp.no_sockets",
    "aiohttp.web_ws",
    "aiohttp.http_websocket",
    "certs.kit",
    "certs.nssdb",
    "certs.truststore",
    "certs.bundle",
    "broker.control.messages",
    "email.parser",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was read and looked up before any right was given up."""

    config: RunnerConfig
    state: Path
    runtime: Path
    ready: Readiness
    groups: cgroups.Support
    forbidden: ForbiddenRoots
    admitted: Admitted


def run_runner(file: str) -> int:
    """Serve until told to end; the exit code. Raises ConfigError or LaunchError where it cannot start."""
    # More than any payload's: the kernel counts those in flight by user and refuses whoever may have less (unix(7)).
    kernel.raise_descriptors()
    prepared = _prepare(file)
    lock = _take_lock(prepared.runtime)
    keeper = start_keeper(partial(_forget_socket, prepared.runtime))  # before anything is made that it removes
    listener = _listen(prepared.runtime / SOCKET_NAME, prepared.admitted)
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
    kernel.prctl(
        kernel.PR_SET_DUMPABLE, 0
    )  # a payload has the same user outside: it must not be able to steer this one
    code = Gate(listener, near, prepared.admitted, pid, keeper.pid).run()
    with contextlib.suppress(OSError):
        (prepared.runtime / SOCKET_NAME).unlink()
    keeper.stop()
    return code


def _forget_socket(runtime: Path) -> None:
    """Remove the socket of a gate that was killed, unless another runner is there already and has taken its place."""
    with contextlib.suppress(ConfigError, OSError):
        lock = _take_lock(runtime)
        (runtime / SOCKET_NAME).unlink(missing_ok=True)
        os.close(lock)


def _prepare(file: str) -> Prepared:
    source = os.path.abspath(file)  # noqa: PTH100  `..` after a link is the kernel's to resolve
    try:
        config = parse_config(read_trusted(source), source=source)
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    identity = serving_identity()
    try:
        places = config.runner
        state = Path(places.state) if places.state else default_state_dir(os.environ, os.geteuid())
        runtime = Path(places.runtime) if places.runtime else default_runtime_dir(os.environ, os.geteuid())
        prepare_state(state, identity)
        _prepare_runtime(runtime, identity)
    except (NoStateDirectory, NoRuntimeDirectory) as error:
        raise ConfigError(f"{error}; or name it in {source}, table [runner].") from error
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be made: {error.strerror}.") from error
    admitted = _admitted(config, identity, source)
    ready = _look()
    _preload()
    groups = cgroups.claim(cgroups.detect(), uid=identity.uid, gid=identity.gid)
    if groups.made:
        cgroups.keep(groups)  # its lease is held by this process and those that it forks, until the last has ended
    identity.become()
    return Prepared(
        config=config,
        state=state,
        runtime=runtime,
        ready=ready,
        groups=groups.support,
        forbidden=forbidden_roots(
            uid=identity.uid,
            state=[state, runtime, USUAL_BROKER],
            databases=[Path(place) for place in (*places.databases, *([places.attach] if places.attach else []))],
            managed=None if places.managed is None else Path(places.managed),
        ),
        admitted=admitted,
    )


def _look() -> Readiness:
    try:
        return Readiness(host=look_at_host())
    except LaunchError as error:
        return Readiness(host=None, refused=error)


def _preload() -> None:
    """Load what is otherwise loaded on first use: after a change of user this interpreter may be unreadable."""
    for name in _LATE:
        importlib.import_module(name)
    for codec in ("utf-8", "latin-1", "ascii", "idna", "punycode", "utf-16-be", "utf-16-le"):
        codecs.lookup(codec)
    openapi_document()
    traceback.format_exception(ValueError())
    msgspec.json.encode(msgspec.convert("2000-01-01T00:00:00Z", datetime))


def _admitted(config: RunnerConfig, identity: Identity, source: str) -> Admitted:
    """Numbers for the accounts. Root and the serving user are always let in; root is an administrator."""

    def numbers(accounts: tuple[Account, ...], look_up: Callable[[str], int], what: str) -> set[int]:
        return {_number(account, look_up, f"{what} in [access] of {source}") for account in accounts}

    access = config.access
    administrators = numbers(access.administrators, lambda name: pwd.getpwnam(name).pw_uid, "administrator")
    uids = numbers(access.users, lambda name: pwd.getpwnam(name).pw_uid, "user")
    return Admitted(
        uids=frozenset({0, identity.uid, *uids, *administrators}),
        gids=frozenset(numbers(access.groups, lambda name: grp.getgrnam(name).gr_gid, "group")),
        administrators=frozenset({0, *administrators}),
    )


def _number(account: Account, look_up: Callable[[str], int], what: str) -> int:
    if isinstance(account, int):
        return account
    try:
        return look_up(account)
    except KeyError as error:
        raise ConfigError(f"There is no {what} named {account}. Make it, or take the name out.") from error


def _prepare_runtime(runtime: Path, identity: Identity) -> None:
    """The directory of the socket: anybody may pass through, only the serving user may change what is in it."""
    runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = runtime.lstat()
    if os.geteuid() == 0 and found.st_uid == 0 and stat.S_ISDIR(found.st_mode):
        os.chown(runtime, identity.uid, identity.gid, follow_symlinks=False)
        found = runtime.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != identity.uid or found.st_mode & 0o022:
        cure = f"It must be a directory of user {identity.uid} that nobody else can write."
        raise ConfigError(f"The runtime directory {runtime} could be changed by others. {cure}")


def _take_lock(runtime: Path) -> int:
    """Hold the runtime directory against a second runner; a socket that is found under it is a dead runner's."""
    path = runtime / LOCK_NAME
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _lock(lock)
    except BlockingIOError as error:
        cure = "Stop it, or give this one another directory: runtime in [runner] of its configuration."
        raise ConfigError(f"Another runner serves in {runtime}. {cure}") from error
    except OSError as error:
        raise ConfigError(f"The lock {path} cannot be opened: {error.strerror}.") from error
    return lock


def _lock(lock: int) -> None:
    """Take the lock. Raises BlockingIOError. The keeper of a killed runner has it for a moment, which is waited for."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _listen(path: Path, admitted: Admitted) -> socket.socket:
    """Open the socket. Where others than root and the serving user are let in, anybody may knock: the gate decides."""
    closed = not admitted.gids and admitted.uids <= {0, os.geteuid()}
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # never open wider than meant, not even for a moment
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600 if closed else 0o666)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"The socket {path} cannot be made: {error.strerror or error}.") from error
    finally:
        os.umask(before)
    return listener


def _be_runner(prepared: Prepared, channel: socket.socket, gate: int, keeper: Keeper) -> NoReturn:
    status = 1
    try:
        os.setsid()  # a terminal that the gate was started on is nobody's in here
        prepared = replace(prepared, ready=_enter_namespaces(prepared.ready, gate))
        if (problem := prepared.ready.problem()) is not None:
            say(f"no sandbox is started here: {problem}")
        starter = None if prepared.ready.refused else start_starter(keeper.connection, ANNOUNCED)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(prepared, channel, keeper, starter))
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


async def _serve(prepared: Prepared, channel: socket.socket, keeper: Keeper, starter: RunnersStarter | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, joining.PASSED_ON)  # what came since the gate was there comes now
    for path in sweep(prepared.state):
        say(f"what a killed session left in {path} was taken away")
    if starter is not None:
        Child(starter.pid).ended.add_done_callback(lambda _: _give_up(stop))
    operations = _operations(prepared, keeper, starter)
    server = runner_server(operations, loop)
    channel.setblocking(False)
    peers = asyncio.create_task(_take_peers(channel, server))
    peers.add_done_callback(lambda _: stop.set())
    notify("READY=1")
    await stop.wait()
    notify("STOPPING=1")
    peers.cancel()
    await operations.close()
    await server.close()


def _give_up(stop: asyncio.Event) -> None:
    say("the process that starts commands has gone, and the runner ends")
    stop.set()


def _operations(prepared: Prepared, keeper: Keeper, starter: RunnersStarter | None) -> Operations:
    namespaces = Namespaces(net=os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    support = prepared.groups
    ground = Ground(
        host=prepared.ready.host or UNUSABLE,
        state=prepared.state,
        support=support,
        namespaces=namespaces,
        keeper=keeper,
        starter=starter,
    )
    attach = prepared.config.runner.attach
    workshop = Workshop(
        ground=ground,
        state=prepared.state,
        attach=None if attach is None else Path(attach),
        hidden=_own_places(prepared),
        lot=_lot(prepared, ground),
        next_bridge=NextBridge(partial(return_to, namespaces.net)),
    )
    return Operations(
        workshop=workshop,
        admission=Admission(
            most=prepared.config.most(), forbidden=prepared.forbidden, state=prepared.state, ready=prepared.ready
        ),
        terminals=Terminals(workshop, time.time),
        mode=FullAccess(),
        sessions=Sessions(workshop, time.time),
        jobs=Jobs(workshop, time.time),
        version=__version__,
        broker=attach,
    )


def _lot(prepared: Prepared, ground: Ground) -> Lot:
    lot = Lot(ground, prepared.config.runner.parked if prepared.ready.refused is None else 0)
    # What is asked for first is likely to be this; other shapes are parked once they were asked for.
    lot.want(shape_of(Authority(hidden=_own_places(prepared)), prepared.config.most()))
    return lot


def _own_places(prepared: Prepared) -> tuple[Path, ...]:
    """What a sandbox never sees: ours, and the usual places of a broker that may run as the same user."""
    usual = [USUAL_BROKER]
    with contextlib.suppress(NoStateDirectory):
        usual.append(default_state_dir(os.environ, os.geteuid()))
    databases = [Path(place) for place in prepared.config.runner.databases]
    attach = [] if prepared.config.runner.attach is None else [Path(prepared.config.runner.attach).parent]
    return tuple(dict.fromkeys([prepared.state, prepared.runtime, *usual, *databases, *attach]))


async def _take_peers(channel: socket.socket, server: ApiServer) -> None:
    """Take the connections that the gate has let in, until it has gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            await readable(channel.fileno(), loop.create_future())
            continue
        if not message:
            return
        peer = decode_peer(message)
        caller = Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid, administrator=peer.administrator)
        if not descriptors:
            news = NO_DESCRIPTOR
        elif await server.serve(socket.socket(fileno=descriptors[0]), caller):
            news = TAKEN
        else:
            news = TOO_MANY
        await loop.sock_sendall(channel, news)
