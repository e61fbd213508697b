"""`python -m wicketgate` and the `wicketgate` program."""

import sys


def main() -> None:
    """Run the command line and exit."""
    from wicketgate import cli  # noqa: PLC0415  an import that fails should name what is missing, not this line

    sys.exit(cli.main())


if __name__ == "__main__":
    main()
