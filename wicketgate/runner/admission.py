"""From documents to values: the only place where a request becomes a command and rights.

The command comes from `call` alone and the rights from `authority` alone. Whether a directory may be a workspace is
decided by the one validating function, with the rules of now.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from broker.api.faults import ApiError
from sandbox.limits import LimitError, Limits
from sandbox.rights import Command, Rights
from sandbox.spec import Mode, Network
from sandbox.workspace import ForbiddenRoots, Workspace, recall_choice, validate_workspace
from wicketgate.runner.faults import Fault
from wicketgate.runner.readiness import Readiness
from wicketgate.runner.schema import MAX_SCRIPT, Authority, Call, LimitsAsked

BASH = ("/bin/bash", "-c")
PYTHON = ("/usr/bin/python3", "-c")
MAX_TOTAL = 512 * 1024  # bytes of all arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What requests are judged by. `most`: the limits of the configuration."""

    most: Limits
    forbidden: ForbiddenRoots
    state: Path
    ready: Readiness

    def command(self, call: Call) -> Command:
        """The command of a call. Raises ApiError."""
        given = [name for name in ("bash", "python", "argv") if getattr(call, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ApiError(Fault.BAD_CALL, f"Give exactly one of bash, python and argv, not {found}.", field="call")
        return Command(
            argv=_arguments(call),
            stdin=_bytes(call.stdin, "call.stdin"),
            timeout=call.timeout,
            directory=_directory(call.directory),
        )

    def rights(self, authority: Authority, *, full_access: bool) -> Rights:
        """The rights of an authority, for a launch. Raises ApiError, WorkspaceError and LaunchError.

        `full_access`: whether it is allowed now.
        """
        network = Network(authority.network)
        if authority.grant is not None and network is not Network.BROKERED:
            raise ApiError(
                Fault.INVALID_FIELD,
                "A grant needs network brokered; without it nothing can be reached.",
                field="authority.network",
            )
        mode = Mode(authority.mode)
        if mode is Mode.FULL_ACCESS and not full_access:
            cure = "An administrator has to allow it first; nothing was started instead."
            raise ApiError(Fault.FULL_ACCESS_OFF, cure, field="authority.mode")
        self.ready.check()
        return Rights(
            workspace=self._workspace(authority),
            network=network,
            grant=authority.grant or "",
            call=authority.call or "",
            timeout=authority.timeout,
            limits=self._limits(authority.limits),
            mode=mode,
        )

    def judge(self, typed: str) -> Workspace:
        """Judge a path. Raises WorkspaceError."""
        return validate_workspace(typed, forbidden=self.forbidden, uid=os.geteuid())

    def _workspace(self, authority: Authority) -> Workspace | None:
        if authority.workspace is not None and authority.user is not None:
            raise ApiError(Fault.INVALID_FIELD, "Give a workspace or a user, not both.", field="authority.user")
        if authority.workspace is not None:
            return self.judge(authority.workspace)
        if authority.user is None:
            return None
        return recall_choice(user=authority.user, state=self.state, forbidden=self.forbidden, uid=os.geteuid())

    def _limits(self, asked: LimitsAsked) -> Limits:
        most = structs.asdict(self.most)
        given = {name: value for name in most if (value := getattr(asked, name)) is not None}
        for name, value in given.items():
            if most[name] is not None and value > most[name]:
                raise ApiError(
                    Fault.INVALID_FIELD,
                    f"{name} is {value}, and the runner's configuration allows {most[name]} at most.",
                    field=f"authority.limits.{name}",
                )
        try:
            return structs.replace(self.most, **given)
        except LimitError as error:
            raise ApiError(Fault.INVALID_FIELD, f"{error}.", field="authority.limits") from error


def _arguments(call: Call) -> tuple[str, ...]:
    arguments: tuple[str, ...]
    if call.bash is not None:
        arguments = (*BASH, call.bash)
    elif call.python is not None:
        arguments = (*PYTHON, call.python)
    else:
        arguments = tuple(call.argv or ())
        if not arguments[0] or "=" in arguments[0]:
            raise ApiError(Fault.BAD_CALL, "The name of a program is empty or holds “=”.", field="call.argv")
    sizes = [len(_bytes(word, "call")) for word in arguments]
    if max(sizes) > MAX_SCRIPT or sum(sizes) > MAX_TOTAL:
        cure = f"One argument may have {MAX_SCRIPT} bytes, all of them {MAX_TOTAL}; put more into a file or on stdin."
        raise ApiError(Fault.TOO_LARGE, cure, field="call")
    return arguments


def _bytes(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(Fault.INVALID_FIELD, "The text is not valid Unicode.", field=field) from error


def _directory(text: str) -> str:
    """Checked here once more, not only by the schema: nothing may lead up or be absolute."""
    parts = Path(text).parts
    if text.startswith("/") or ".." in parts or "\0" in text:
        raise ApiError(Fault.BAD_CALL, "The directory must lie below the workspace.", field="call.directory")
    _bytes(text, "call.directory")
    return str(Path(*parts)) if parts else ""
