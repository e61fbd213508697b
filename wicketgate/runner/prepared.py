"""What a runner reads, looks up and loads while it still may: as whoever started it, before any right is given up."""

import codecs
import contextlib
import grp
import importlib
import os
import pwd
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from broker.audit.location import NoStateDirectory, default_state_dir
from broker.control.places import NoRuntimeDirectory, default_runtime_dir
from broker.policy.load import read_trusted
from broker.policy.problems import PolicyError
from sandbox import cgroups
from sandbox.errors import LaunchError
from sandbox.host import look_at_host
from sandbox.workspace import ForbiddenRoots, forbidden_roots
from wicketgate.identity import Identity, prepare_state, serving_identity
from wicketgate.memory import keep_large_apart, share_memory
from wicketgate.runner.config import Account, ConfigError, RunnerConfig, parse_config
from wicketgate.runner.gate import Admitted
from wicketgate.runner.openapi import openapi_document
from wicketgate.runner.readiness import Readiness
from wicketgate.runtime import UnsafeRuntime, prepare_runtime

USUAL_BROKER: Final = Path("/var/lib/wicketgate")  # its state; no command may reach it, whoever serves it
_LATE: Final = (
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


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What was read and looked up before any right was given up."""

    config: RunnerConfig
    state: Path
    runtime: Path
    ready: Readiness
    groups: cgroups.Support
    forbidden: ForbiddenRoots
    admitted: Admitted

    def own_places(self) -> tuple[Path, ...]:
        """What a sandbox never sees: ours, and the usual places of a broker that may run as the same user."""
        usual = [USUAL_BROKER]
        with contextlib.suppress(NoStateDirectory):
            usual.append(default_state_dir(os.environ, os.geteuid()))
        databases = [Path(place) for place in self.config.runner.databases]
        attach = [] if self.config.runner.attach is None else [Path(self.config.runner.attach).parent]
        return tuple(dict.fromkeys([self.state, self.runtime, *usual, *databases, *attach]))


def prepare(file: str) -> Prepared:
    """Read the configuration, make the directories, become the serving user. Raises ConfigError or LaunchError."""
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
        prepare_runtime(runtime, identity)
    except (NoStateDirectory, NoRuntimeDirectory) as error:
        raise ConfigError(f"{error}; or name it in {source}, table [runner].") from error
    except UnsafeRuntime as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be made: {error.strerror}.") from error
    admitted = _admitted(config, identity, source)
    ready = _look()
    _preload()
    share_memory()
    keep_large_apart()
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
