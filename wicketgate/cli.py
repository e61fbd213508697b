"""The command line. Subcommands are loaded when they are used: most of them need modules that `run` does not."""

import importlib
import sys
from typing import Any

import click

from wicketgate import __version__
from wicketgate.guard import UsageError, guarded

COMMANDS = {
    "run": "wicketgate.commands.run:command",
    "policy": "wicketgate.commands.policy:policy",
    "audit": "wicketgate.commands.audit:audit",
    "review": "wicketgate.commands.review:command",
    "certs": "wicketgate.commands.certs:certs",
    "doctor": "wicketgate.commands.doctor:command",
    "health": "wicketgate.commands.health:command",
    "broker": "wicketgate.commands.broker:command",
    "runner": "wicketgate.commands.runner:command",
    "job": "wicketgate.commands.job:job",
    "term": "wicketgate.commands.term:term",
    "workspace": "wicketgate.commands.workspace:workspace",
    "grant": "wicketgate.commands.grant:grant",
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
    """Run a command line; the exit code. It never raises."""
    words = sys.argv[1:] if argv is None else argv
    return guarded(words, lambda: _run(words))


def _run(words: list[str]) -> int:
    try:
        result: Any = front.main(args=words, prog_name="wicketgate", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        raise UsageError(error.ctx.get_help() if error.ctx else "no command was given", "") from error
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        raise UsageError(error.format_message(), context.command_path if context is not None else "") from error
    except click.exceptions.Abort as error:
        raise KeyboardInterrupt from error
    return result if isinstance(result, int) else 0
