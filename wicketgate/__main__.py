"""`python -m wicketgate` and the `wicketgate` program."""

import sys


def main() -> None:
    """Run the command line and exit."""
    try:  # an interrupt while modules are loaded is an interrupt, not a traceback
        code = _through_a_runner()
        if code is None:
            from wicketgate import cli  # noqa: PLC0415

            code = cli.main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _through_a_runner() -> int | None:
    """The one command that starts faster than the command line is loaded; None for all others."""
    if sys.argv[1:2] != ["run"] or not any(word.startswith("--runner") for word in sys.argv):
        return None
    from wicketgate import through  # noqa: PLC0415

    asked = through.read(sys.argv[1:])
    return None if asked is None else through.run_through(**asked)


if __name__ == "__main__":
    main()
