"""`wicketgate.Sandbox`: what `wicketgate run` does, from Python."""

import asyncio
import time
from pathlib import Path

import pytest

import wicketgate
from tests.live.runs import adopted, until
from tests.origins.process import HttpsOrigin
from wicketgate import Sandbox, SandboxError

pytestmark = pytest.mark.live


async def test_a_command_without_a_network() -> None:
    script = "cat; echo err >&2; grep -o '[a-z0-9]*:' /proc/net/dev; exit 3"
    done = await Sandbox().run("sh", "-c", script, stdin=b"told\n")
    assert (done.code, done.stdout, done.stderr) == (3, "told\nlo:\n", "err\n")
    assert (done.timed_out, done.dropped_bytes, done.egress) == (False, 0, None)
    assert done.session


async def test_words_are_words_and_never_options(tmp_path: Path) -> None:
    for word in ("--allow", "--", "-x", "$(id)", "a b", "'"):
        assert (await Sandbox().run("printf", "%s", "--", word)).stdout.endswith(word)
    with pytest.raises(SandboxError) as refused:
        await Sandbox(workspace=f"{tmp_path} --allow=a.example").run("true")
    assert refused.value.code == "bad_usage"
    with pytest.raises(TypeError):
        await Sandbox(allow="a.example").run("true")


async def test_what_is_allowed_and_what_is_not(https_origin: HttpsOrigin) -> None:
    authority = f"origin.example:{https_origin.http}"
    sandbox = Sandbox(allow=[authority], resolve=[f"{authority}:127.0.0.1"], private=["127.0.0.1/32"])
    fetch = f"for h in {authority} other.example; do curl -s -o /dev/null -w '%{{http_code}} ' http://$h/; done"
    done = await sandbox.run("sh", "-c", fetch)
    assert done.stdout == "200 403 "
    assert done.egress is not None
    assert (done.egress.allowed, done.egress.denied, done.egress.failures) == (1, 1, 0)
    assert done.egress.log.is_absolute()


async def test_refusals_carry_their_code() -> None:
    for sandbox, command, code in (
        (Sandbox(workspace="/"), "true", "bad_usage"),
        (Sandbox(allow=["*"]), "true", "bad_usage"),
        (Sandbox(), "no-such-program", "command_not_found"),
        (Sandbox(grant="0" * 32, socket="/nowhere/attach.sock"), "true", "broker_gone"),
    ):
        with pytest.raises(SandboxError) as refused:
            await sandbox.run(command)
        assert refused.value.code == code
        assert refused.value.detail


@pytest.mark.parametrize(
    "command",
    [("a\0b",), ("echo", "\0"), ("echo", "\ud800"), ("echo", "x" * 200_000), ("echo", *["x" * 1000] * 5000)],
    ids=["zero byte", "zero byte in a word", "no Unicode", "a word too long", "too many words"],
)
async def test_words_that_no_program_can_be_given(command: tuple[str, ...]) -> None:
    with pytest.raises(SandboxError) as refused:
        await Sandbox().run(*command)
    assert refused.value.code == "bad_call"


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -1, 0])
async def test_a_time_that_is_none(timeout: float) -> None:
    with pytest.raises(SandboxError) as refused:
        await Sandbox().run("true", timeout=timeout)
    assert refused.value.code == "bad_usage"


async def test_input_that_nobody_reads() -> None:
    assert (await Sandbox().run("true", stdin=b"x" * 5_000_000)).code == 0


async def test_a_limit_and_a_cancelled_call_leave_nothing() -> None:
    with adopted() as left:
        begin = time.monotonic()
        done = await Sandbox().run("sh", "-c", "echo begun; sleep 1000", timeout=0.5)
        assert (done.code, done.timed_out, done.stdout) == (124, True, "begun\n")
        stubborn = "trap '' TERM INT; setsid sleep 1000 & echo; while :; do sleep 1000; done"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await Sandbox().run("sh", "-c", stubborn)
        assert time.monotonic() - begin < 30
        until(lambda: left() == [])


def test_the_front_door_has_the_value_types() -> None:
    for name in ("Sandbox", "SandboxError", "Result", "Egress", "Runner", "RunnerError", "Broker", "Call", "Authority"):
        assert getattr(wicketgate, name).__doc__
