"""`wicketgate broker`: everything that has to be done before the broker serves, in the only order that works.

Read the configuration and look up accounts as whoever started it; become the serving user; check state, lock and open
the sockets; start the door, which stays outside; enter the user namespace and give up every right; start the process
that forks workers; serve.
"""

import grp
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.audit.directory import open_directory
from broker.audit.errors import AuditDirectoryError
from broker.audit.location import NoStateDirectory, default_state_dir
from broker.control.config import USUAL_WORKERS, Account, Allowed, BrokerConfig, parse_config
from broker.control.daemon import Daemon, StartError, preload_daemon
from broker.control.door import Access
from broker.control.places import SOCKET_NAMES, NoRuntimeDirectory, default_runtime_dir
from broker.policy.load import read_trusted
from broker.workers.worker import Settings
from netns import kernel
from wicketgate import __version__
from wicketgate.doorway import listen, open_door, take_lock
from wicketgate.fork_server import start_fork_server
from wicketgate.identity import Identity, prepare_state, serving_identity
from wicketgate.memory import share_memory
from wicketgate.runtime import UnsafeRuntime, prepare_runtime

MAX_CERTIFICATES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was read and looked up before any right was given up."""

    config: BrokerConfig
    state: Path
    runtime: Path
    certificates: tuple[bytes, ...]
    access: dict[str, Access]
    identity: Identity


def run_broker(file: str) -> None:
    """Serve until told to end. Raises `PolicyError` or `StartError` where it cannot start."""
    # More than any payload's: the kernel counts those in flight by user and refuses whoever may have less (unix(7)).
    kernel.raise_descriptors()
    prepared = _prepare(file)
    runtime = prepared.runtime
    lock = take_lock(runtime)
    listeners = listen(runtime, prepared.access, prepared.identity.uid)
    config = prepared.config
    door = open_door(listeners, prepared.access, config.policy, lock)
    confined = _confine()
    served = Settings(state=prepared.state, sync=config.sync, certificates=prepared.certificates, fixed=config.fixed)
    daemon = Daemon(
        policy=config.policy,
        state=prepared.state,
        door=door,
        fork_server=start_fork_server(served, foreign=(door.fileno(), lock)),
        workers=config.workers or min(len(os.sched_getaffinity(0)), USUAL_WORKERS),
        version=__version__,
        user_namespace=confined,
        sockets=tuple(runtime / name for name in SOCKET_NAMES.values()),
        sync=config.sync,
        certificates=prepared.certificates,
        grants=config.grants,
    )
    daemon.run()


def _prepare(file: str) -> Prepared:
    source = os.path.abspath(file)  # noqa: PTH100  `..` after a link is the kernel's to resolve
    config = parse_config(read_trusted(source), source=source)
    identity = serving_identity()
    try:
        state = Path(config.state) if config.state else default_state_dir(os.environ, os.geteuid())
        runtime = Path(config.runtime) if config.runtime else default_runtime_dir(os.environ, os.geteuid())
    except (NoStateDirectory, NoRuntimeDirectory) as error:
        raise StartError(f"{error}; or name it in {source}, table [broker].") from error
    certificates = tuple(_certificates(path) for path in config.cacert)
    access = {role: _access(getattr(config, role), identity, f"[{role}] of {source}") for role in SOCKET_NAMES}
    try:
        prepare_state(state, identity)
        prepare_runtime(runtime, identity)
    except UnsafeRuntime as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{error.filename} cannot be made: {error.strerror}.") from error
    preload_daemon()  # once, for all processes to come; the serving user may be unable to read this interpreter
    share_memory()
    identity.become()
    try:
        os.close(open_directory(state))
    except AuditDirectoryError as error:
        raise StartError(f"{error}.") from error
    return Prepared(
        config=config,
        state=state,
        runtime=runtime,
        certificates=certificates,
        access=access,
        identity=identity,
    )


def _access(allowed: Allowed, identity: Identity, where: str) -> Access:
    """Numbers for the accounts of one socket. Root and the serving user are always let in."""
    uids = [_number(user, lambda name: pwd.getpwnam(name).pw_uid, f"user in {where}") for user in allowed.users]
    gids = [_number(group, lambda name: grp.getgrnam(name).gr_gid, f"group in {where}") for group in allowed.groups]
    return Access(uids=frozenset((0, identity.uid, *uids)), gids=frozenset(gids))


def _number(account: Account, look_up: Callable[[str], int], what: str) -> int:
    if isinstance(account, int):
        return account
    try:
        return look_up(account)
    except KeyError as error:
        raise StartError(f"There is no {what} named {account}. Make it, or take the name out.") from error


def _certificates(path: str) -> bytes:
    try:
        # Not blocked by a FIFO, nor fed for ever by a device.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(MAX_CERTIFICATES + 1) or b""
    except OSError as error:
        raise StartError(f"The certificates in {path} cannot be read: {error.strerror}.") from error
    if len(content) > MAX_CERTIFICATES or b"-----BEGIN CERTIFICATE-----" not in content:
        raise StartError(f"{path} is not a file of PEM certificates of {MAX_CERTIFICATES} bytes at most.")
    return content


def _confine() -> bool:
    """Give up everything; whether a user namespace could be entered."""
    before = os.geteuid()
    try:
        kernel.enter_user_namespace()
        entered = True
    except OSError as error:
        if os.geteuid() != before:  # it is inside, and nobody there
            raise StartError(f"The user namespace could not be set up: {error.strerror}.") from error
        entered = False  # `health` says so
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities(bounding=entered)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return entered
