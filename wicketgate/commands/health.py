"""`wicketgate health`: do the daemons do now what they are there for? For health checks; the doctor examines the host.

A broker is healthy when it serves sessions and can keep their records. That egress is off is no illness. A runner is
healthy when a command really runs in a sandbox that it builds now, and its broker, if it has one, answers.
"""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import click

from broker.control.client import Broker, BrokerError
from broker.control.places import NoRuntimeDirectory
from sandbox.doctor.findings import State
from sandbox.doctor.surroundings import check_broker
from wicketgate.runner.client import Authority, Call, Runner, RunnerError
from wicketgate.speech import print_document, say

ILL = 1
PATIENCE = 8.0  # seconds for one daemon; an engine's own limit for the check must be longer
# Spelt as no sandbox that was built ahead serves it (`sandbox.parked.suits`): whether one can be built is asked.
PROBE = Call(argv=["/usr/./bin/true"], timeout=PATIENCE)


@click.command(name="health")
@click.option("--broker", type=click.Path(path_type=Path), help="Ask the broker of this control socket.")
@click.option("--runner", type=click.Path(path_type=Path), help="Have the runner of this socket run a command.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(broker: Path | None, runner: Path | None, *, as_json: bool) -> int:
    """Ask running daemons whether they do their work. Exit code 1: one does not, and why."""
    if broker is None and runner is None:
        raise click.UsageError("Give --broker, --runner or both.")
    ills = asyncio.run(_ask(broker, runner))
    if as_json:
        print_document({"healthy": not ills, "ills": ills, "exit_code": ILL if ills else 0})
    for one in ills:
        say(one)
    return ILL if ills else 0


async def _ask(broker: Path | None, runner: Path | None) -> list[str]:
    found = []
    if broker is not None:
        found += await _bounded(_ills_of_broker(broker), f"The broker at {broker}")
    if runner is not None:
        found += await _bounded(_ills_of_runner(runner), f"The runner at {runner}")
    return found


async def _bounded(work: Awaitable[list[str]], name: str) -> list[str]:
    try:
        async with asyncio.timeout(PATIENCE):
            return await work
    except TimeoutError:
        return [f"{name} does not answer within {PATIENCE:.0f} s."]


async def _ills_of_broker(path: Path) -> list[str]:
    try:
        async with Broker(path) as broker:
            health = await broker.health()
    except (BrokerError, NoRuntimeDirectory) as error:
        return [str(error)]
    if health.ready:
        return []
    return [f"The broker at {path} serves nobody: {one.code}: {one.detail}" for one in health.degraded]


async def _ills_of_runner(path: Path) -> list[str]:
    try:
        async with Runner(path) as runner:
            health = await runner.health()
            done = await runner.run(PROBE, Authority())
    except RunnerError as error:
        return [f"The runner at {path} runs nothing: {error.detail}"]
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip()
        return [
            f"A command that does nothing ended with {done.code} in a sandbox of the runner at {path}. {said}".strip()
        ]
    if health.broker is None:
        return []
    found = await asyncio.to_thread(check_broker, Path(health.broker))
    return [] if found.state is State.OK else [found.sentence]
