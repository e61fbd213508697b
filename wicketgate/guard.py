"""The last guard of the command line: whatever goes wrong becomes one sentence, an exit code and, where it was asked
for, a document. 125 means that Wicketgate itself refused or failed.
"""

import errno
import os
import sys
from collections.abc import Callable

from netns.kernel import lock_standard_descriptors
from sandbox.errors import Code, Interrupted, LaunchError
from wicketgate.speech import print_document, say
from wicketgate.typed import REPEATED, SINGLE

REFUSED, INTERRUPTED = 125, 130
VALUED = frozenset(f"--{name}" for name in SINGLE | REPEATED)
# Disk, descriptors, memory, processes: nothing that anybody here has done wrong.
_EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
EXIT_CODES = {Code.COMMAND_NOT_FOUND: 127, Code.COMMAND_NOT_EXECUTABLE: 126}


class UsageError(Exception):
    """What was typed cannot be meant. `command`: whose help tells more; empty where none does."""

    def __init__(self, text: str, command: str = "wicketgate run") -> None:
        hint = f" `{command} --help` lists what there is." if command else ""
        super().__init__(" ".join(text.split()) + hint)


def guarded(words: list[str], run: Callable[[], int]) -> int:
    """The exit code of what was typed; never raises."""
    try:
        lock_standard_descriptors()
        return run()
    except UsageError as error:
        return _refuse(words, "bad_usage", str(error))
    except LaunchError as error:
        return _refuse(words, error.code, str(error), EXIT_CODES.get(error.code, REFUSED))
    except Interrupted as error:
        return _refuse(words, "interrupted", str(error), error.code)
    except KeyboardInterrupt:
        return _refuse(words, "interrupted", "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return REFUSED  # whoever read the output has gone
    except OSError as error:
        if error.errno not in _EXHAUSTED:
            return _own_fault(words, error)
        where = f", {error.filename}" if error.filename else ""
        return _refuse(words, "exhausted", f"The system has no more of it ({error.strerror}{where}). Free some.")
    except Exception as error:  # noqa: BLE001  no traceback reaches a user who did not ask for it
        return _own_fault(words, error)


def _own_fault(words: list[str], error: Exception) -> int:
    if os.environ.get("WICKETGATE_DEBUG") == "1":
        sys.excepthook(type(error), error, error.__traceback__)  # needs no module that may be unreadable by now
    cure = "Run it again with WICKETGATE_DEBUG=1 and report what that prints."
    return _refuse(words, "internal_error", f"An error of Wicketgate itself ({type(error).__name__}: {error}). {cure}")


def _refuse(words: list[str], code: str, message: str, exit_code: int = REFUSED) -> int:
    say(message)
    if wants_document(words):
        print_document({"error": {"code": code, "message": message}, "exit_code": exit_code})
    return exit_code


def wants_document(words: list[str]) -> bool:
    """Whether `--json` was given to us and not to the command that is to be run, also where the rest is malformed."""
    if words[:1] != ["run"]:
        return "--json" in words
    rest = iter(words[1:])
    for word in rest:
        if word == "--json":
            return True
        if word == "--" or not word.startswith("-"):
            return False
        if word in VALUED:
            next(rest, None)
    return False
