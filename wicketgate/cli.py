"""The command line. Subcommands are loaded when they are used: most of them need modules that `run` does not."""

import importlib
import os
import sys
from typing import Any

import click

from netns.kernel import lock_standard_descriptors
from sandbox.errors import Code, LaunchError
from sandbox.supervise import Interrupted
from wicketgate import __version__
from wicketgate.speech import print_document, say

REFUSED, INTERRUPTED = 125, 130
# The options of `run` that take a value.
VALUED = frozenset(
    "--workspace --allow --policy --grant --socket --resolve --cacert --private --timeout --runner".split()  # noqa: SIM905
)
EXIT_CODES = {Code.COMMAND_NOT_FOUND: 127, Code.COMMAND_NOT_EXECUTABLE: 126}
COMMANDS = {
    "run": "wicketgate.commands.run:command",
    "policy": "wicketgate.commands.policy:policy",
    "audit": "wicketgate.commands.audit:audit",
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
    """Run a command line; the exit code. 125 means that Wicketgate itself refused or failed, and it never raises."""
    words = sys.argv[1:] if argv is None else argv
    try:
        lock_standard_descriptors()
        result: Any = front.main(args=words, prog_name="wicketgate", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        return _refuse(words, "bad_usage", error.ctx.get_help() if error.ctx else "no command was given")
    except click.ClickException as error:
        return _refuse(words, "bad_usage", _usage(error))
    except LaunchError as error:
        return _refuse(words, error.code, str(error), EXIT_CODES.get(error.code, REFUSED))
    except Interrupted as error:
        return _refuse(words, "interrupted", str(error), error.code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _refuse(words, "interrupted", "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return REFUSED  # whoever read the output has gone
    except Exception as error:  # noqa: BLE001  the last guard: no traceback reaches a user who did not ask for it
        if os.environ.get("WICKETGATE_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)  # needs no module that may be unreadable by now
        cure = "Run it again with WICKETGATE_DEBUG=1 and report what that prints."
        return _refuse(
            words, "internal_error", f"An error of Wicketgate itself ({type(error).__name__}: {error}). {cure}"
        )


def _refuse(words: list[str], code: str, message: str, exit_code: int = REFUSED) -> int:
    say(message)
    if wants_document(words):
        print_document({"error": {"code": code, "message": message}, "exit_code": exit_code})
    return exit_code


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" `{context.command_path} --help` lists what there is." if context is not None else ""
    return " ".join(error.format_message().split()) + hint


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
