"""The runner's configuration file: TOML, version 1, read strictly. Pure: opening it is the starter's work.

Users and groups stay names here; the starter looks them up.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from sandbox.limits import LimitError, Limits

FORMAT_VERSION = 1
type Place = Annotated[str, Meta(pattern=r"^/[^\x00-\x1f]*(?![\s\S])", max_length=4096)]
type Account = (
    Annotated[int, Meta(ge=0, le=2**32 - 2)]
    | Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?(?![\s\S])")]
)


class ConfigError(Exception):
    """The configuration cannot be used. The message names the file, the place and what was expected."""


class Where(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """[runner]. `attach`: the broker's attach socket; without it there is no network for anybody.

    `managed`: the root below which workspaces may be made. `databases`: files and directories that no workspace may
    hold. `state` and `runtime`: the usual places where they are not given. `parked`: how many sandboxes are kept ready
    for the next sessions.
    """

    state: Place | None = None
    runtime: Place | None = None
    attach: Place | None = None
    managed: Place | None = None
    databases: tuple[Place, ...] = ()
    parked: Annotated[int, Meta(ge=0, le=64)] = 4


class Access(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """[access]. Who may use the socket, beside root and the runner's own user; who may allow full access."""

    users: tuple[Account, ...] = ()
    groups: tuple[Account, ...] = ()
    administrators: tuple[Account, ...] = ()


class RunnerConfig(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The whole file. `limits` are the most that a session may have, and what it has unless it asks for less."""

    version: int
    runner: Where = Where()
    access: Access = Access()
    limits: dict[str, Any] = {}

    def most(self) -> Limits:
        """The limits as a value."""
        return Limits(**{**structs.asdict(Limits()), **self.limits})


def parse_config(text: str, *, source: str) -> RunnerConfig:
    """Parse a configuration. Raises ConfigError."""
    try:
        config = msgspec.convert(tomllib.loads(text), RunnerConfig)
        if config.version != FORMAT_VERSION:
            raise ConfigError(f"{source}: version is {config.version}; this runner reads version {FORMAT_VERSION}.")
        unknown = sorted(set(config.limits) - set(Limits.__struct_fields__))
        if unknown:
            known = ", ".join(Limits.__struct_fields__)
            raise ConfigError(f"{source}: [limits] has no {unknown[0]!r}; it has {known}.")
        config.most()
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, LimitError, TypeError) as error:
        raise ConfigError(f"{source}: {error}.") from error
    return config


def usual_socket(environ: dict[str, str], euid: int) -> Path | None:
    """Where a runner's socket is usually: WICKETGATE_RUNNER if set, else below the usual runtime directory."""
    named = environ.get("WICKETGATE_RUNNER", "")
    if named:
        return Path(named)
    runtime = "/run" if euid == 0 else environ.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) / "wicketgate" / SOCKET_NAME if runtime.startswith("/") else None


SOCKET_NAME = "runner.sock"
