"""Full access: an administrator's exact words, never stored, files only: no socket, process or network of the host."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.live.runners import Daemon, daemon, serving_uid
from wicketgate.runner.client import Authority, Call, Runner, RunnerError

pytestmark = pytest.mark.live
FULL = Authority(mode="full-access")


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon(access=f"administrators = [{os.geteuid()}]") as made:
        yield made


@pytest.fixture
async def widened(runner: Runner) -> AsyncIterator[Runner]:
    await runner.allow_full_access((await runner.mode()).confirmation)
    yield runner
    await runner.forbid_full_access()


async def test_it_is_off_until_the_exact_words_are_typed(runner: Runner) -> None:
    words = (await runner.mode()).confirmation
    for typed in ("", words.lower(), f"{words} ", words[:-1], "yes"):
        with pytest.raises(RunnerError) as wrong:
            await runner.allow_full_access(typed)
        assert (wrong.value.status, wrong.value.code) == (400, "wrong_confirmation")
    with pytest.raises(RunnerError) as off:
        await runner.run(Call(bash="echo ran"), FULL)
    assert (off.value.status, off.value.code) == (403, "full_access_off")
    assert (await runner.allow_full_access(words)).full_access
    assert (await runner.run(Call(bash="echo ran"), FULL)).stdout == b"ran\n"
    assert not (await runner.forbid_full_access()).full_access
    with pytest.raises(RunnerError):
        await runner.run(Call(bash="echo ran"), FULL)


@pytest.mark.ordinary_only
async def test_who_is_no_administrator_cannot_allow_it() -> None:
    with daemon() as made:
        async with made.client() as runner:
            with pytest.raises(RunnerError) as refused:
                await runner.allow_full_access((await runner.mode()).confirmation)
            assert (refused.value.status, refused.value.code) == (403, "not_administrator")


async def test_a_restart_ends_it(served: Daemon) -> None:
    async with served.client() as runner:
        await runner.allow_full_access((await runner.mode()).confirmation)
        await runner.start_job(Call(bash="sleep 600"), FULL)
    await asyncio.to_thread(served.stop)
    await asyncio.to_thread(served.start)
    async with served.client() as runner:
        assert not (await runner.mode()).full_access
        with pytest.raises(RunnerError, match="full_access_off"):
            await runner.run(Call(bash="true"), FULL)


async def test_files_are_widened_by_the_serving_users_rights(widened: Runner) -> None:
    assert (await widened.run(Call(bash="ls -d /opt /srv /etc/passwd"), FULL)).code == 0
    assert (await widened.run(Call(bash="ls -d /opt"))).code != 0
    if not os.access("/opt", os.W_OK):
        return  # an ordinary user may have no place outside of /tmp, which is private
    with tempfile.TemporaryDirectory(dir="/opt") as place:
        Path(place).chmod(0o755)
        (Path(place) / "readable").write_text("seen")
        if os.geteuid() == 0:
            os.chown(place, serving_uid(), serving_uid())
        done = await widened.run(Call(bash=f"cat {place}/readable; echo made > {place}/made"), FULL)
        assert done.stdout == b"seen", done.stderr
        assert (Path(place) / "made").stat().st_uid == serving_uid()
    assert (await widened.run(Call(bash="cat /etc/shadow; id -u"), FULL)).stdout == b"1000\n"


async def test_no_socket_of_the_host_is_reached(served: Daemon, widened: Runner) -> None:
    """Streams, packets and datagrams, by a path that nobody hides, and by pairs that are connected anew."""
    probe = """
import os, socket, sys
def tries(path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        for make in (lambda: socket.socket(socket.AF_UNIX, kind), lambda: socket.socketpair(socket.AF_UNIX, kind)[0]):
            try:
                one = make()
                one.connect(path)
                one.send(b'hello')
                yield 'reached'
            except OSError:
                yield 'refused'
    for kind in (1, 2, 3, 5):
        for flags in (0, 0o4000, 0o2000000, 1 << 33):
            try:
                socket.socket(socket.AF_UNIX, kind | flags).connect(path)
                yield 'reached'
            except (OSError, OverflowError):
                yield 'refused'
print(set(tries(sys.argv[1])), os.path.exists(sys.argv[1]))
"""
    home = served.workspace("sockets")
    listeners = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        listener = socket.socket(socket.AF_UNIX, kind)
        path = home / f"socket-{int(kind)}"
        listener.bind(str(path))
        path.chmod(0o777)
        if kind is not socket.SOCK_DGRAM:
            listener.listen()
        listeners.append((listener, path))
        authority = Authority(mode="full-access", workspace=str(home))
        found = await widened.run(Call(argv=["/usr/bin/python3", "-c", probe, str(path)]), authority)
        assert found.stdout == b"{'refused'} True\n", found
        oracle = await widened.run(
            Call(argv=["/usr/bin/python3", "-c", probe, str(path)]), Authority(workspace=str(home))
        )
        assert b"reached" in oracle.stdout, "in the workspace of an ordinary session it is the user's own socket"
    for listener, _ in listeners:
        listener.close()


async def test_processes_network_and_our_own_places_stay_hidden(served: Daemon, widened: Runner) -> None:
    places = f"ls /run /tmp /sys | wc -w; ls {served.state} | wc -l; ls -A /dev/shm | wc -l"
    look = f"ps -e | wc -l; {places}; cut -d: -f1 /proc/net/dev | tail -n +3"
    done = await widened.run(Call(bash=look), FULL)
    lines = done.stdout.decode().split()
    assert int(lines[0]) < 8
    assert lines[2:] == ["0", "0", "lo"]
    assert (
        await widened.run(Call(bash="ls /proc/sys/kernel/core_pattern && echo x > /proc/sys/kernel/core_pattern"), FULL)
    ).code != 0


async def test_terminals_are_refused_rather_than_given_sockets(widened: Runner) -> None:
    with pytest.raises(RunnerError, match="bad_call"):
        await widened.open_terminal(authority=FULL)


async def test_tools_work(widened: Runner) -> None:
    pool = "python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1, 2]))'"
    script = f"{pool}; echo x | cat; mktemp; git --version"
    done = await widened.run(Call(bash=script), FULL)
    assert done.stdout.startswith(b"[1, 2]\nx\n/tmp/tmp."), done
