"""`wicketgate run`: what the command line's library says of it and reads. What it means: `wicketgate.options`."""

from pathlib import Path

import click

from wicketgate.beginning import begin


@click.command(name="run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--workspace", metavar="DIR", help="Show this directory inside, writable.")
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="Reach this host (default ports: 443 and 80).")
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Allow what this policy file allows.",
)
@click.option("--grant", metavar="ID", help="Run under a grant of a running broker.")
@click.option("--socket", metavar="PATH", help="With --grant: the broker's attach socket, if not in the usual place.")
@click.option("--resolve", multiple=True, metavar="HOST:PORT:ADDR", help="Use this address instead of a look-up.")
@click.option(
    "--cacert",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Trust these certificates too (PEM).",
)
@click.option("--private", multiple=True, metavar="CIDR", help="Let allowed names resolve to these addresses.")
@click.option("--timeout", type=float, metavar="S", help="End everything after this many seconds (exit code 124).")
@click.option(
    "--runner",
    metavar="SOCKET",
    help="Run it through this running runner. Its standard input is read to the end first; nothing else is passed on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the command's output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(  # noqa: PLR0913, PLR0917  one parameter an option
    workspace: str | None,
    allow: tuple[str, ...],
    policy_file: Path | None,
    grant: str | None,
    socket: str | None,
    resolve: tuple[str, ...],
    cacert: tuple[Path, ...],
    private: tuple[str, ...],
    timeout: float | None,
    runner: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND in a sandbox that has no network, or one cable to what --allow names."""
    return begin(
        command=command,
        workspace=workspace,
        allow=allow,
        policy=policy_file,
        grant=grant,
        socket=socket,
        resolve=resolve,
        cacert=cacert,
        private=private,
        timeout=timeout,
        runner=runner,
        json=as_json,
    )
