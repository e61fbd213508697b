"""The four routes are one: the same probe finds itself in the same sandbox on each, byte for byte."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.daemons import broker_daemon
from tests.live.runners import Daemon, daemon, serving_uid
from wicketgate.runner.client import Authority, Call, Runner

pytestmark = pytest.mark.live
PROBE = Path(__file__).parent / "payloads" / "report.py"
COMMAND = "/usr/bin/python3 -I probe.py > report.json"


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon() as made:
        (made.workspace() / "probe.py").write_text(PROBE.read_text())
        yield made


async def by_bash(runner: Runner, authority: Authority) -> None:
    done = await runner.run(Call(bash=COMMAND), authority)
    assert done.code == 0, done.stderr


async def by_python(runner: Runner, authority: Authority) -> None:
    opened = "f = os.open('report.json', os.O_WRONLY | os.O_CREAT); os.dup2(f, 1); os.close(f)"
    code = f"import os; {opened}; exec(open('probe.py').read())"
    done = await runner.run(Call(python=code), authority)
    assert done.code == 0, done.stderr


async def by_session(runner: Runner, authority: Authority) -> None:
    async with runner.session(authority) as session:
        done = await runner.run_in(session.id, Call(bash=COMMAND))
        assert done.code == 0, done.stderr


async def by_job(runner: Runner, authority: Authority) -> None:
    job = await runner.start_job(Call(bash=COMMAND), authority)
    assert (await runner.wait_job(job.id)).code == 0


async def by_terminal(runner: Runner, authority: Authority) -> None:
    opened = await runner.open_terminal(authority=authority)
    done = await runner.run_in_terminal(opened.id, COMMAND)
    await runner.close_terminal(opened.id)
    assert done.code == 0, done.output


ROUTES = {"bash": by_bash, "python": by_python, "session": by_session, "job": by_job, "terminal": by_terminal}


async def test_the_same_probe_yields_the_same_report(served: Daemon, runner: Runner) -> None:
    place = served.workspace()
    reports: dict[str, bytes] = {}
    for name, route in ROUTES.items():
        (place / "report.json").unlink(missing_ok=True)
        await route(runner, Authority(workspace=str(place)))
        reports[name] = await asyncio.to_thread((place / "report.json").read_bytes)
    for name, report in reports.items():
        assert json.loads(report) == json.loads(reports["bash"]), f"{name} differs from bash"
        assert report == reports["bash"]
    found = json.loads(reports["bash"])
    assert set(found["calls"].values()) <= {"EPERM", "ENOSYS", "EACCES"}, found["calls"]
    assert all(int(found["status"][f"Cap{kind}"], 16) == 0 for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert (found["status"]["Seccomp"], found["status"]["Seccomp_filters"], found["status"]["NoNewPrivs"]) == (
        "2",
        "1",
        "1",
    )
    assert all(found["namespaces"].values())
    assert found["descriptors"] == []
    assert found["interfaces"] == ["lo"]
    assert {kind for kind, answer in found["sockets"].items() if answer == "worked"} <= {"1", "2", "10", "16"}
    assert found["oom"] == "900"


async def test_the_same_probe_with_a_cable_yields_the_same_report_too() -> None:
    rule = '[[rule]]\nname = "r"\naction = "allow"\nhosts = ["origin.example"]\nports = [443]\n'
    with broker_daemon(rule) as broker, daemon(extra=f'attach = "{broker.attach}"') as made:
        place = made.workspace()
        (place / "probe.py").write_text(PROBE.read_text())
        reports: dict[str, bytes] = {}
        async with made.client() as runner:
            for name, route in ROUTES.items():
                (place / "report.json").unlink(missing_ok=True)
                await route(runner, Authority(workspace=str(place), network="brokered"))
                reports[name] = await asyncio.to_thread((place / "report.json").read_bytes)
        for name, report in reports.items():
            assert json.loads(report) == json.loads(reports["bash"]), f"{name} differs from bash"
            assert report == reports["bash"]
        found = json.loads(reports["bash"])
        assert sorted(found["interfaces"]) == ["eth0", "lo"]
        assert any("CA" in line.partition("=")[0] for line in found["environment"]), "the trust kit"


async def test_the_probe_finds_what_it_looks_for() -> None:
    """The oracle: without the boundary the same probe reports what none of the routes shows."""
    process = await asyncio.create_subprocess_exec(
        *("/usr/bin/python3", "-I", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"SECRET": "x"},
        user=serving_uid(),  # never root: some of the calls would work
        group=serving_uid() if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
        cwd="/",
    )
    found = json.loads((await process.communicate(PROBE.read_bytes()))[0])
    assert "SECRET=x" in found["environment"]
    assert found["status"]["Seccomp"] == "0"
    assert {"ptrace", "io_uring_setup", "userfaultfd"} & {
        name for name, answer in found["calls"].items() if answer not in {"EPERM", "ENOSYS", "EACCES"}
    }
    assert "40" in {kind for kind, answer in found["sockets"].items() if answer != "EPERM"}
