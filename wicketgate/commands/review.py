"""`wicketgate review`: the review page, in a process of its own that reads the log and does nothing else."""

from pathlib import Path

import click

from wicketgate.speech import say

REFUSED = 125


@click.command(name="review")
@click.option("--listen", default="127.0.0.1:8321", show_default=True, metavar="ADDRESS:PORT", help="Where to listen.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="State directory (default: /var/lib/wicketgate for root, else the user's).",
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A further name to answer to: a reverse proxy's.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="Keep the token in this file (0600), so that a restart lets the same browsers in; made if it is not there.",
)
@click.option(
    "--index-dir",
    type=click.Path(path_type=Path),
    help="Keep the index in this directory (0700; made if it is not there), for a log that can only be read.",
)
def command(
    listen: str, state_dir: Path | None, hosts: tuple[str, ...], token_file: Path | None, index_dir: Path | None
) -> int:
    """Serve the audit log as pages for people, until SIGTERM. Prints the address to open, with its token."""
    from broker.audit.errors import AuditError  # noqa: PLC0415  `--help` needs none of it
    from broker.audit.location import NoStateDirectory  # noqa: PLC0415
    from wicketgate.reviewing import serve_review  # noqa: PLC0415

    try:
        serve_review(listen, state_dir, hosts, token_file, index_dir)
    except (AuditError, NoStateDirectory) as error:
        say(f"the review page does not run: {error}")
        return REFUSED
    return 0
