"""`wicketgate broker`: the broker as a daemon."""

import click

from wicketgate.speech import say

REFUSED = 125


@click.command(name="broker")
@click.option("--config", "file", required=True, type=click.Path(), help="The broker's configuration file (TOML).")
def command(file: str) -> int:
    """Serve grants and attached sandboxes until SIGTERM. SIGHUP reads the policy file again."""
    from broker.control.daemon import StartError  # noqa: PLC0415  `--help` needs none of it
    from broker.policy.problems import PolicyError  # noqa: PLC0415
    from wicketgate.daemon import run_broker  # noqa: PLC0415

    try:
        run_broker(file)
    except (PolicyError, StartError, ConnectionError) as error:
        say(f"the broker does not run: {error}")
        return REFUSED
    return 0
