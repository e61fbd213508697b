"""`wicketgate runner`: the runner as a daemon."""

import click

from wicketgate.speech import say

REFUSED = 125


@click.command(name="runner")
@click.option("--config", "file", required=True, type=click.Path(), help="The runner's configuration file (TOML).")
def command(file: str) -> int:
    """Serve runs, sessions, jobs and terminals until SIGTERM."""
    from sandbox.workspace import WorkspaceError  # noqa: PLC0415  `--help` needs none of it
    from wicketgate.runner.config import ConfigError  # noqa: PLC0415
    from wicketgate.runner.start import run_runner  # noqa: PLC0415

    try:
        return run_runner(file)
    except (ConfigError, WorkspaceError) as error:
        say(f"the runner does not run: {error}")
        return REFUSED
