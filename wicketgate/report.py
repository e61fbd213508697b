"""How a `wicketgate run` went: its exit code, and what is said of it."""

from typing import TYPE_CHECKING

from sandbox.errors import Code
from sandbox.supervise import Ending
from wicketgate.guard import REFUSED
from wicketgate.speech import print_document, say
from wicketgate.start import Outcome

if TYPE_CHECKING:
    from wicketgate.output import Stream


def report(outcome: Outcome, *, as_json: bool) -> int:
    """Tell it; the exit code."""
    ending, finished = outcome.ending, outcome.finished
    if as_json:
        return ending.code if print_document(_document(outcome)) else REFUSED
    trouble = _trouble(ending)
    if trouble is not None:
        say(trouble[1])
    if finished is not None:
        failures = f", {finished.failures} failed" if finished.failures else ""
        counts = f"{finished.allowed} allowed, {finished.denied} denied{failures}"
        say(f"{counts}; session {outcome.session} in {finished.log}")
    return ending.code


def _trouble(ending: Ending) -> tuple[str, str] | None:
    """What ended the run beside the command itself: a code and a sentence."""
    if ending.broker_gone:
        return Code.BROKER_GONE, "the broker has gone; the command was ended, because it had no network any more"
    if ending.keeper_gone:
        return Code.KEEPER_GONE, "the process that cleans up after a kill has gone; the command was ended"
    if ending.lost:
        return Code.SANDBOX_LOST, "the sandbox's own process was killed from outside; everything in it has ended"
    if ending.timed_out:
        return Code.TIMED_OUT, "the time limit is over; everything in the sandbox was ended"
    if not ending.started and ending.code == REFUSED:
        return Code.SANDBOX_FAILED, "the sandbox could not be set up, so the command was not started"
    return None


def _document(outcome: Outcome) -> dict[str, object]:
    finished = outcome.finished
    document: dict[str, object] = {
        "session": outcome.session,
        "exit_code": outcome.ending.code,
        "started": outcome.ending.started,
        "timed_out": outcome.ending.timed_out,
    }
    trouble = _trouble(outcome.ending)
    if trouble is not None:
        document["error"] = {"code": trouble[0], "message": trouble[1]}
    if outcome.output is not None:
        document["stdout"] = _text(outcome.output.stdout)
        document["stderr"] = _text(outcome.output.stderr)
    if finished is not None:
        document["network"] = {
            "allowed": finished.allowed,
            "denied": finished.denied,
            "failures": finished.failures,
            "log": finished.log,
        }
    return document


def _text(stream: "Stream") -> dict[str, object]:
    return {"text": stream.kept.decode("utf-8", "replace"), "dropped_bytes": stream.dropped}
