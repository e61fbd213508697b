"""`wicketgate workspace`: judge, make and list workspaces, by the same function as the runner's launches."""

from pathlib import Path

import click

from wicketgate.commands.runner_access import ask, json_option, show, socket_option
from wicketgate.runner import schema

user_option = click.option("--user", metavar="NAME", help="Remember it as this user's choice.")


@click.group(name="workspace")
def workspace() -> None:
    """Judge, make and list the directories that sandboxes may write to."""


@workspace.command()
@socket_option
@json_option
@user_option
@click.argument("directory")
def check(socket: Path | None, as_json: bool, user: str | None, directory: str) -> int:
    """Say whether DIRECTORY may be a workspace, and if not, why."""
    path = ask(socket, lambda runner: runner.check_workspace(directory, user=user), as_json=as_json)
    return _show(path, as_json)


@workspace.command()
@socket_option
@json_option
@user_option
@click.argument("name")
def create(socket: Path | None, as_json: bool, user: str | None, name: str) -> int:
    """Make the folder NAME under the managed root."""
    path = ask(socket, lambda runner: runner.create_workspace(name, user=user), as_json=as_json)
    return _show(path, as_json)


@workspace.command(name="list")
@socket_option
@json_option
def list_workspaces(socket: Path | None, as_json: bool) -> int:
    """List the folders under the managed root."""
    found = ask(socket, lambda runner: runner.workspaces(), as_json=as_json)
    if isinstance(found, int):
        return found
    if as_json:
        return show(found)
    for name in found.names:
        click.echo(f"{found.root}/{name}")
    return 0


def _show(path: str | int, as_json: bool) -> int:
    if isinstance(path, int):
        return path
    if as_json:
        return show(schema.WorkspaceState(path=path))
    click.echo(path)
    return 0
