"""Where a call begins: a directory that is there, as the sandbox sees it."""

import pytest

from tests.live.runners import Daemon
from wicketgate.runner.client import Authority, Call, Runner, RunnerError

pytestmark = pytest.mark.live


@pytest.mark.parametrize("directory", ["absent", "file", "file/below", "loop", "out", "x" * 300])
async def test_a_directory_that_is_not_there_is_refused_on_every_route(
    served: Daemon, runner: Runner, directory: str
) -> None:
    place = served.workspace()
    (place / "file").touch()
    for name, target in (("loop", "loop"), ("out", str(served.state))):
        if not (place / name).is_symlink():
            (place / name).symlink_to(target)
    call, authority = Call(bash="pwd", directory=directory), Authority(workspace=str(place))
    async with runner.session(authority) as session:
        for ask in (
            lambda: runner.run(call, authority),
            lambda: runner.start_job(call, authority),
            lambda: runner.run_in(session.id, call),
        ):
            with pytest.raises(RunnerError, match="cannot be entered in the sandbox") as refused:
                await ask()
            assert (refused.value.code, refused.value.status) == ("bad_call", 400)


async def test_a_link_of_the_workspace_is_a_directory_where_it_leads_to_one_inside(
    served: Daemon, runner: Runner
) -> None:
    place = served.workspace()
    (place / "below" / "deeper").mkdir(parents=True)
    (place / "link").symlink_to("/usr/share")
    (place / "near").symlink_to("below/deeper")
    authority = Authority(workspace=str(place))
    for directory, found in (("link", "/usr/share"), ("near", f"{place}/below/deeper")):
        done = await runner.run(Call(bash="pwd -P", directory=directory), authority)
        assert done.stdout.decode() == f"{found}\n"
