"""`python -m wicketgate` and the `wicketgate` program."""

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from wicketgate import cli  # noqa: PLC0415  an interrupt while modules are loaded is an interrupt, not a traceback

        code = cli.main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
