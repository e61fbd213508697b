"""Two sessions in one workspace: what the one does to names does not spare the other's from being looked at."""

import asyncio
from pathlib import Path

import pytest

from tests.live.runners import daemon
from wicketgate.runner.client import Authority, Call

pytestmark = pytest.mark.live

# Names that are looked at come and go, in more directories than are looked at in a moment.
COME_AND_GO = """
import contextlib, os
names = [f"come{number}/{name}" for number in range(40) for name in (".git", ".envrc", ".vscode")]
for name in names:
    os.makedirs(os.path.dirname(name), exist_ok=True)
print("up", flush=True)
while True:
    for change in (lambda name: os.symlink("/nowhere", name), os.unlink):
        for name in names:
            with contextlib.suppress(OSError):
                change(name)
"""
PLANT = "mkdir -p {0}/objects {0}/refs {0}/hooks && touch {0}/HEAD {0}/config && echo x > {0}/hooks/post-commit"
CALLS = 25


async def test_names_that_come_and_go_do_not_keep_what_was_planted() -> None:
    with daemon() as served:
        workspace: Path = served.workspace()
        authority = Authority(workspace=str(workspace))
        async with served.client() as runner:
            job = await runner.start_job(Call(python=COME_AND_GO), authority)
            while (await runner.show_job(job.id)).output_bytes == 0:
                await asyncio.sleep(0.01)
            for number in range(CALLS):
                place = f"planted{number}/.git"
                done = await runner.run(Call(bash=PLANT.format(place)), authority)
                assert done.code == 0, done.stderr
                assert any(said.startswith(f"{place}/hooks: renamed") for said in done.set_aside)
            await runner.stop_job(job.id)
        assert not list(workspace.glob("planted*/.git/hooks"))
