"""Why a launch was refused: a stable code and one sentence with the cause and the cure; or what ended it early."""

import signal
from enum import StrEnum
from typing import Final

AGAIN: Final = "Start it again."  # the cure of what may pass
BY_SIGNAL: Final = 128  # and the signal's number: the exit code that says so


class Code(StrEnum):
    """The stable codes. A refused launch never turns into a weaker sandbox."""

    NOT_LINUX = "not_linux"
    UNSUPPORTED_MACHINE = "unsupported_machine"
    NO_BWRAP = "no_bwrap"
    UNTRUSTED_BWRAP = "untrusted_bwrap"
    NO_USER_NAMESPACES = "no_user_namespaces"
    NO_NETWORK_NAMESPACES = "no_network_namespaces"
    NO_CAPTURE = "no_capture"
    NO_SERVICE_USER = "no_service_user"
    NO_STATE_DIRECTORY = "no_state_directory"
    NO_TRUST_BUNDLE = "no_trust_bundle"
    BAD_WORKSPACE = "bad_workspace"
    BAD_CALL = "bad_call"
    SESSION_OVER = "session_over"
    TOO_MANY = "too_many"
    BROKER_FAILED = "broker_failed"
    BROKER_GONE = "broker_gone"
    KEEPER_GONE = "keeper_gone"
    SANDBOX_FAILED = "sandbox_failed"
    SANDBOX_LOST = "sandbox_lost"
    TIMED_OUT = "timed_out"
    COMMAND_NOT_FOUND = "command_not_found"
    COMMAND_NOT_EXECUTABLE = "command_not_executable"


class LaunchError(Exception):
    """A sandbox could not be established. `cause` says what is wrong, `cure` what to do about it."""

    def __init__(self, code: Code, cause: str, cure: str) -> None:
        super().__init__(f"{cause} {cure}")
        self.code = code
        self.cause = cause
        self.cure = cure


class Interrupted(Exception):  # noqa: N818  not an error: somebody wanted it
    """A signal that ends the run came before the command was started. `code` is the exit code that says so."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name} before the command was started")
        self.code = BY_SIGNAL + number
