"""The command line. Subcommands are loaded when they are used: most of them need modules that `run` does not."""

import importlib
import sys
from typing import Any

import click

from sandbox.errors import Code, LaunchError
from wicketgate import __version__

REFUSED = 125
EXIT_CODES = {Code.COMMAND_NOT_FOUND: 127, Code.COMMAND_NOT_EXECUTABLE: 126}
COMMANDS = {
    "run": "wicketgate.commands.run:command",
    "policy": "wicketgate.commands.policy:policy",
    "audit": "wicketgate.commands.audit:audit",
    "certs": "wicketgate.commands.certs:certs",
}


class Front(click.Group):
    """A group whose commands are modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command)
        return found


@click.command(cls=Front, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="wicketgate")
def front() -> None:
    """Run an agent's commands in a sandbox without a network, with one audited cable where the policy says so."""


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the exit code. 125 means that Wicketgate itself refused or failed."""
    try:
        result: Any = front.main(args=argv, prog_name="wicketgate", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else "", file=sys.stderr)
        return REFUSED
    except click.ClickException as error:
        return _refuse(error.format_message())
    except click.exceptions.Abort:
        return 130
    except LaunchError as error:
        return _refuse(str(error), EXIT_CODES.get(error.code, REFUSED))
    return result if isinstance(result, int) else 0


def _refuse(message: str, code: int = REFUSED) -> int:
    print(f"wicketgate: {message}", file=sys.stderr)
    return code
