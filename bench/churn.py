"""What a soak does over and over: each act starts sandboxes through the daemons, ends them in one way, and checks it.

Acts are independent and run side by side. Each issues a grant of its own and leaves nothing on purpose; what it finds
that it did not expect is an `AssertionError` or a `RunnerError`, which the soak counts as a failure.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.control.client import Broker
from broker.control.schema import Budgets
from tests.live.runners import alive
from wicketgate.runner.client import Authority, Call, Runner, RunnerError, data_of
from wicketgate.runner.schema import Ended, Output, Started

PLAIN, INSPECTED, SPLICED, ELSEWHERE = "plain.example", "inspected.example", "spliced.example", "elsewhere.example"
NAMES: Final = (PLAIN, INSPECTED, SPLICED)
GRANT_SECONDS: Final = 120.0
TUNNELS: Final = 12
STATUS: Final = "curl -sS -m 30 -o /dev/null -w '%{http_code}\\n'"
# Holds tunnels and inspected connections open, each used once, until it is told or cut; then says how many were cut.
HOLD: Final = """
import select, socket, ssl, sys
names, port, count = sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
held = []
for number in range(count):
    name = names[number % 2]
    context = ssl.create_default_context()
    if number % 2:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sock = context.wrap_socket(socket.create_connection((name, port), 30), server_hostname=name)
    sock.sendall(f"GET /bytes/20000 HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n\\r\\n".encode())
    got = b""
    while len(got.partition(b"\\r\\n\\r\\n")[2]) < 20000:
        piece = sock.recv(65536)
        assert piece, got[:200]
        got += piece
    held.append(sock)
print("open", flush=True)
cut = 0
for sock in held:
    try:
        cut += not sock.recv(1)
    except OSError:
        cut += 1
print("cut", cut, flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Where the acts take place: clients of both daemons, the origin's ports, a workspace."""

    runner: Runner
    broker: Broker
    http: int
    https: int
    workspace: Path

    @asynccontextmanager
    async def granted(self, budgets: Budgets | None = None) -> AsyncIterator[Authority]:
        """The authority of a call with a grant to all three names; every other grant is left to expire."""
        allowed = [f"{PLAIN}:{self.http}", f"{INSPECTED}:{self.https}", f"{SPLICED}:{self.https}"]
        call = f"call-{secrets.token_hex(4)}"
        grant = await self.broker.issue(allow=allowed, call=call, ttl=GRANT_SECONDS, budgets=budgets)
        yield Authority(network="brokered", grant=grant.id, call=call, workspace=str(self.workspace))
        if secrets.randbelow(2):
            await self.broker.revoke(grant.id)

    @property
    def fetch_all(self) -> str:
        plain = f"{STATUS} http://{PLAIN}:{self.http}/echo?token=x"
        inspected = f"{STATUS} https://{INSPECTED}:{self.https}/bytes/200000"
        spliced = f"{STATUS} -k https://{SPLICED}:{self.https}/chunked/200000"
        return f"{plain}; {inspected}; {spliced}"

    @property
    def hold(self) -> Call:
        words = [INSPECTED, SPLICED, str(self.https), str(TUNNELS)]
        return Call(argv=["/usr/bin/python3", "-c", HOLD, *words])


type Act = Callable[[Field], Awaitable[None]]


async def allowed_requests(field: Field) -> None:
    async with field.granted() as authority:
        done = await field.runner.run(Call(bash=field.fetch_all), authority)
        assert done.stdout.split() == [b"200"] * 3, done


async def denied_requests(field: Field) -> None:
    async with field.granted() as authority:
        asked = f"{STATUS} http://{ELSEWHERE}/; {STATUS} https://{ELSEWHERE}/; getent hosts wpad; echo $?"
        refused = "curl -sS -m 30 telnet://192.0.2.1:25; echo $?"
        done = await field.runner.run(Call(bash=f"{asked}; {refused}"), authority)
        first, second, unknown, reset = done.stdout.split()
        assert (first, second) == (b"403", b"403"), done
        assert unknown != b"0", done
        assert reset != b"0", done


async def broken_transfers(field: Field) -> None:
    """Answers that break off, clients that go away, a slow reader, an answer before its request's end."""
    async with field.granted() as authority:
        where = f"http://{PLAIN}:{field.http}"
        script = f"""
        curl -s -m 30 -o /dev/null {where}/cut/100000; echo $?
        curl -s -m 0.3 -o /dev/null {where}/late/5000; echo $?
        curl -s -m 30 --limit-rate 2M -o /dev/null {where}/bytes/1000000; echo $?
        curl -s -m 0.3 --limit-rate 1k -o /dev/null -k https://{SPLICED}:{field.https}/bytes/3000000; echo $?
        head -c 3000000 /dev/zero | {STATUS} -T - https://{INSPECTED}:{field.https}/upload
        """
        done = await field.runner.run(Call(bash=script), authority)
        broken, *others = done.stdout.split()
        assert broken in (b"18", b"56"), done  # curl's words for a body that ends early and for one that is reset
        assert others == [b"28", b"0", b"28", b"200"], done


async def spent_budget(field: Field) -> None:
    async with field.granted(Budgets(requests=2)) as authority:
        ask = f"{STATUS} http://{PLAIN}:{field.http}/"
        done = await field.runner.run(Call(bash=f"{ask}; {ask}; {ask}"), authority)
        assert done.stdout.split() == [b"200", b"200", b"403"], done


async def closed_session(field: Field) -> None:
    """Several calls in a session that is closed while tunnels are open and processes are left."""
    async with field.granted() as authority:
        session = await field.runner.open_session(authority)
        await field.runner.run_in(
            session.id, Call(bash="setsid sleep 300 >/dev/null 2>&1 & echo x > left; sleep 300 &")
        )
        done = await field.runner.run_in(session.id, Call(bash=field.fetch_all))
        assert done.stdout.split() == [b"200"] * 3, done
        events = field.runner.stream_in(session.id, field.hold)
        await _said(events, "open")
        await field.runner.close_session(session.id)
        await _drain(events)


async def revoked_grant(field: Field) -> None:
    """A revoked grant cuts every tunnel, and the payload reads on."""
    async with field.granted() as authority:
        events = field.runner.stream(field.hold, authority)
        await _said(events, "open")
        assert authority.grant is not None
        await field.broker.revoke(authority.grant)
        assert f"cut {TUNNELS}" in await _drain(events)


async def cut_session(field: Field) -> None:
    """The operator cuts a session from the network."""
    async with field.granted() as authority, field.runner.session(authority) as session:
        events = field.runner.stream_in(session.id, field.hold)
        await _said(events, "open")
        await field.broker.cut_session(session.id)
        assert f"cut {TUNNELS}" in await _drain(events)


async def ended_job(field: Field) -> None:
    async with field.granted() as authority:
        call = Call(bash=f"setsid sleep 300 >/dev/null 2>&1 & {field.fetch_all}; exit 3")
        job = await field.runner.start_job(call, authority)
        done = await field.runner.wait_job(job.id)
        assert (done.state, done.code) == ("ended", 3), done
        said = [data_of(event) async for event in field.runner.logs(job.id) if isinstance(event, Output)]
        assert b"".join(said).split() == [b"200"] * 3, said
        await field.runner.remove_job(job.id)


async def stopped_job(field: Field) -> None:
    job = await field.runner.start_job(Call(bash="trap '' TERM INT; (sleep 300 &) ; while :; do sleep 1; done"))
    assert (await field.runner.stop_job(job.id)).state == "stopped"
    await field.runner.remove_job(job.id)


async def cancelled_run(field: Field) -> None:
    """A client that goes away while its command has tunnels open."""
    async with field.granted() as authority:
        events = field.runner.stream(field.hold, authority)
        await _said(events, "open")
        await events.aclose()  # type: ignore[attr-defined]


async def cancelled_early(field: Field) -> None:
    """Clients that go away at any moment of a start."""
    async with field.granted() as authority:
        for _ in range(3):
            run = asyncio.create_task(field.runner.run(Call(bash="sleep 300"), authority))
            await asyncio.wait([run], timeout=secrets.randbelow(80) / 1000)
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await run


async def killed_payload(field: Field) -> None:
    done = await field.runner.run(Call(bash="sleep 300 & kill -9 $$"))
    assert done.code == 137, done


async def killed_sandbox(field: Field) -> None:
    """The first process of the sandbox is killed from outside."""
    mark = f"soak-{secrets.token_hex(6)}"
    async with field.granted() as authority:
        run = asyncio.create_task(field.runner.run(Call(bash=f"exec -a {mark} sleep 300"), authority))
        try:
            async with asyncio.timeout(60):
                while not (found := [pid for pid in alive(mark) if _is_called(pid, mark)]):
                    assert not run.done(), run
                    await asyncio.sleep(0.02)
            os.kill(_parent(found[0]), signal.SIGKILL)
            assert (await run).code != 0
        finally:
            run.cancel()
        assert alive(mark) == []


async def timed_out(field: Field) -> None:
    done = await field.runner.run(Call(bash="trap '' TERM; (setsid sleep 300 &); sleep 300", timeout=0.5))
    assert done.timed_out, done


async def many_processes(field: Field) -> None:
    done = await field.runner.run(Call(bash="for i in $(seq 60); do sleep 300 & done; seq 20000"))
    assert (done.code, len(done.stdout)) == (0, 108_894), done.code


async def terminal(field: Field) -> None:
    async with field.granted() as authority:
        opened = await field.runner.open_terminal(authority=authority)
        result = await field.runner.run_in_terminal(opened.id, f"{STATUS} http://{PLAIN}:{field.http}/")
        assert "200" in result.output, result
        await field.runner.close_terminal(opened.id)


async def refused_starts(field: Field) -> None:
    for wrong in (Authority(network="brokered", grant="no-such-grant"), Authority(workspace="/etc")):
        try:
            await field.runner.run(Call(bash="true"), wrong)
        except RunnerError:
            continue
        raise AssertionError(f"started with {wrong}")


async def operator(field: Field) -> None:
    """What somebody who watches asks for, and a reload of the policy."""
    await field.broker.reload_policy()
    await field.broker.health()
    await field.broker.sessions()
    await field.broker.counters()
    await field.runner.sessions()
    async for _ in field.broker.grants():
        pass


ACTS: Final[tuple[Act, ...]] = (
    allowed_requests,
    denied_requests,
    broken_transfers,
    spent_budget,
    closed_session,
    revoked_grant,
    cut_session,
    ended_job,
    stopped_job,
    cancelled_run,
    cancelled_early,
    killed_payload,
    killed_sandbox,
    timed_out,
    many_processes,
    terminal,
    refused_starts,
    operator,
)


async def _said(events: AsyncIterator[Started | Output | Ended], word: str) -> None:
    """Wait until the command has written a word."""
    said = ""
    async for event in events:
        if isinstance(event, Output):
            said += data_of(event).decode(errors="replace")
        if word in said:
            return
    raise AssertionError(f"ended before {word!r}: {said}")


async def _drain(events: AsyncIterator[Started | Output | Ended]) -> str:
    """The rest of what the command wrote."""
    return "".join([data_of(event).decode(errors="replace") async for event in events if isinstance(event, Output)])


def _is_called(pid: int, mark: str) -> bool:
    """Whether it has executed: before, the mark is among the shell's own words."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(mark.encode())
    except OSError:
        return False


def _parent(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[1])
