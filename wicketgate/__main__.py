"""`python -m wicketgate` and the `wicketgate` program."""

import gc
import os
import sys

from wicketgate.typed import read

TYPE_CHECKING = False  # as in `wicketgate.typed`
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run the command line and exit."""
    words = sys.argv[1:]
    try:  # an interrupt while modules are loaded is an interrupt, not a traceback
        typed = read(words)
        if typed is not None:
            _leave(_run(words, typed))
        from wicketgate import cli  # noqa: PLC0415  the library for command lines takes longer to load than `run`

        code = cli.main(words)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _run(words: list[str], typed: "dict[str, Any]") -> int:
    """`run` in its usual form."""
    gc.disable()  # what is loaded stays: looking through it again and again is a tenth of the start
    if "runner" in typed:
        from wicketgate import through  # noqa: PLC0415

        if through.suits(typed):
            return through.run_through(**typed)
    from wicketgate.guard import guarded  # noqa: PLC0415

    return guarded(words, lambda: _run_alone(typed))


def _run_alone(typed: "dict[str, Any]") -> int:
    from wicketgate.beginning import begin  # noqa: PLC0415  under the guard

    return begin(**typed)


def _leave(code: int) -> None:
    """End at once. Everything is closed; taking the interpreter apart takes as long as starting it did."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed from the start, or nobody reads it
            continue
    os._exit(code)


if __name__ == "__main__":
    main()
