"""An id that a client is given may be a model's words: it is the id of something, or nothing is asked."""

import pytest

from broker.control.client import Broker, NotFound
from tests.live.runners import Daemon
from wicketgate.runner.client import Runner, RunnerError

pytestmark = pytest.mark.live
PLACES = (
    "..",
    ".",
    "",
    "../sessions/ID",
    "%2e%2e/sessions/ID",
    "ID?x",
    "ID#x",
    "ID/",
    "x\nID",
    " ID",
    "ü",
    "\x00",
    "I" * 200,
)


@pytest.mark.parametrize("place", PLACES)
async def test_no_id_leads_to_something_of_another_kind(served: Daemon, runner: Runner, place: str) -> None:
    async with runner.session() as session:
        identity = place.replace("ID", session.id)
        for ask in (runner.remove_job, runner.close_terminal, runner.show_job, runner.stop_job, runner.read):
            with pytest.raises(RunnerError, match="unknown_id"):
                await ask(identity)
        if identity != session.id:
            with pytest.raises(RunnerError, match="unknown_id"):
                await runner.close_session(identity)
        assert (await runner.show_session(session.id)).id == session.id


@pytest.mark.parametrize("place", PLACES)
async def test_nor_does_that_of_a_grant(served: Daemon, place: str) -> None:
    async with Broker(served.directory / "nobody") as broker:
        with pytest.raises(NotFound):
            await broker.revoke(place)
        with pytest.raises(NotFound):
            await broker.cut_session(place)
