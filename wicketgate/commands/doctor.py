"""`wicketgate doctor`: can sandboxes be built here, as the serving user, and do they hold?"""

import os
from pathlib import Path

import click

from broker.audit.location import NoStateDirectory, default_state_dir
from sandbox import cgroups
from sandbox.doctor.examination import Report, Setting, document, examine, refuse
from sandbox.doctor.findings import State
from sandbox.doctor.wholes import INSIDE
from sandbox.errors import Code, LaunchError
from sandbox.host import Host, look_at_host
from wicketgate.identity import serving_identity
from wicketgate.speech import load_documents, print_document, say

_MARKS = {State.OK: "ok", State.WARNING: "warning", State.FAILED: "FAILED"}


@click.command(name="doctor")
@click.option("--attach", type=click.Path(path_type=Path), help="The attach socket of the broker that is to serve.")
@click.option("--inside", is_flag=True, help="Print the program that proves the isolation from within a sandbox.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(attach: Path | None, *, inside: bool, as_json: bool) -> int:
    """Try everything that sandboxes need, as the user who serves. Exit code 78: the process tools must stay off.

    To prove the isolation of a sandbox from within:  wicketgate doctor --inside | wicketgate run -- python3 -I -
    """
    if inside:
        click.echo(INSIDE.read_text(encoding="utf-8"), nl=False)
        return 0
    load_documents()
    report = _examine(attach)
    if as_json:
        print_document(document(report))
    else:
        _tell(report)
    return report.exit_code


def _examine(attach: Path | None) -> Report:
    named = attach or (Path(os.environ["WICKETGATE_ATTACH"]) if os.environ.get("WICKETGATE_ATTACH") else None)
    host, refused = _host()
    state = _state()
    try:
        identity = serving_identity()
        groups = cgroups.claim(cgroups.detect(), uid=identity.uid, gid=identity.gid)
        cgroups.undo(groups)
        identity.become()
    except LaunchError as error:
        return refuse(error)
    except OSError as error:
        cause = f"Root here may not become the serving user ({error.strerror}), and nothing is ever run as root."
        return refuse(
            LaunchError(Code.NO_SERVICE_USER, cause, "Start it as an ordinary user (`user:` in compose.yaml).")
        )
    return examine(Setting(host=host, groups=groups.support, refused=refused, state=state, attach=named))


def _host() -> tuple[Host | None, LaunchError | None]:
    try:
        return look_at_host(), None
    except LaunchError as error:
        return None, error


def _state() -> Path | None:
    try:
        return default_state_dir(os.environ, os.geteuid())
    except NoStateDirectory:
        return None


def _tell(report: Report) -> None:
    for one in report.findings:
        click.echo(f"{_MARKS[one.state]:>7}  {one.check}: {one.sentence}")
        if one.cure:
            click.echo(f"         {one.cure}")
    if report.exit_code:
        say("the process tools must stay off, and nothing is ever run without its sandbox")
