"""What a check of the doctor ends with. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandbox.doctor.causes import Cause, Layer


class Mode(StrEnum):
    """What a sandbox may be built as."""

    SANDBOX = "sandbox"  # without a network
    BRIDGE = "bridge"  # with a cable to a broker


class State(StrEnum):
    """How a check ended. A warning says what is lost; only a failure turns modes off."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The end of one check: a code for machines, a sentence and, if something is wrong, layer and cure."""

    check: str
    state: State
    sentence: str
    layer: Layer | None = None
    cure: str = ""
    off: frozenset[Mode] = frozenset()


EVERY_MODE: Final = frozenset(Mode)
BRIDGE_ONLY: Final = frozenset({Mode.BRIDGE})


def fine(check: str, sentence: str) -> Finding:
    """A check that holds."""
    return Finding(check=check, state=State.OK, sentence=sentence)


def failed(check: str, cause: Cause, off: frozenset[Mode]) -> Finding:
    """A check that does not, and the modes that are off for it."""
    return Finding(
        check=check, state=State.FAILED, sentence=cause.sentence, layer=cause.layer, cure=cause.cure, off=off
    )
