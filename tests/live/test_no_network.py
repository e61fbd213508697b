"""Without a grant there is no network: no interface, no route, no variable, no socket of the host, no broker."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live.gate import children, finish, payload, run, started
from tests.origins.process import HttpsOrigin

pytestmark = pytest.mark.live
UNREACHABLE = {"ConnectionRefusedError", "FileNotFoundError", "OSError", "PermissionError"}


@pytest.fixture(scope="module")
def host_sockets() -> Iterator[dict[str, Any]]:
    """Listening sockets of the host in every way that a payload could try: pathname, abstract, loopback."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="host-sockets-")))
        place.chmod(0o755)
        pathnames, abstract, ports = [], [], []
        for directory in (place, *(Path(one) for one in ("/run", "/var/tmp", "/dev/shm") if os.access(one, os.W_OK))):
            path = directory / f"wicketgate-test-{os.getpid()}.sock"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            stack.callback(path.unlink)
            path.chmod(0o777)
            listener.listen()
            pathnames.append(str(path))
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            name = f"wicketgate-test-{os.getpid()}-{int(kind)}"
            one = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            one.bind("\0" + name)
            if kind == socket.SOCK_STREAM:
                one.listen()
            abstract.append(name)
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            one = stack.enter_context(socket.socket(family))
            one.bind((address, 0))
            one.listen()
            ports.append(one.getsockname()[1])
        yield {"pathnames": pathnames, "abstract": abstract, "ports": ports}


def look(wanted: dict[str, Any], *options: str, env: dict[str, str] | None = None) -> Any:
    return run(*payload("surroundings", json.dumps(wanted)), options=options, env=env).document


def check_no_host_socket(seen: dict[str, Any]) -> None:
    for way in ("pathnames", "abstract", "loopback"):
        assert seen[way]
        for place, outcomes in seen[way].items():
            assert set(outcomes) <= UNREACHABLE, (place, outcomes)
    assert seen["unix"] == []
    assert not [fd for fd in seen["inherited"] if "socket:" in fd]


def test_the_oracle_the_same_program_reaches_them_outside(host_sockets: dict[str, Any]) -> None:
    """So that no "refused" inside comes from a broken probe."""
    for path in host_sockets["pathnames"]:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + host_sockets["abstract"][0])
    with socket.socket() as one:
        one.connect(("127.0.0.1", host_sockets["ports"][0]))


def test_there_is_loopback_and_nothing_else(host_sockets: dict[str, Any]) -> None:
    seen = look(host_sockets)
    assert seen["interfaces"] == ["lo"]
    assert seen["routes"] == []
    assert set(seen["routes6"]) <= {"lo"}
    check_no_host_socket(seen)


def test_proxy_variables_of_the_caller_do_not_come_through(host_sockets: dict[str, Any]) -> None:
    names = [
        name for word in ("http", "https", "all", "no", "ftp") for name in (f"{word}_proxy", f"{word.upper()}_PROXY")
    ]
    seen = look(host_sockets, env={**os.environ, **dict.fromkeys(names, "http://127.0.0.1:9")})
    assert seen["proxies"] == {}


def test_with_a_cable_there_is_one_more_interface_and_no_more_of_the_host(host_sockets: dict[str, Any]) -> None:
    names = [name for word in ("http", "https", "all", "no") for name in (f"{word}_proxy", f"{word.upper()}_PROXY")]
    environment = {**os.environ, **dict.fromkeys(names, "http://127.0.0.1:9")}
    seen = look(host_sockets, "--allow", "api.example.com", env=environment)
    assert seen["interfaces"] == ["eth0", "lo"]
    gateways = {route[2] for route in seen["routes"]} - {"00000000"}
    assert gateways == {"01FF13C6"}  # 198.19.255.1, as the kernel prints it
    assert {route[0] for route in seen["routes"]} == {"eth0"}
    assert seen["proxies"] == {}
    check_no_host_socket(seen)


@pytest.mark.parametrize(("options", "brokers"), [((), 0), (("--allow", "api.example.com"), 1)])
def test_a_broker_is_started_only_for_a_cable(options: tuple[str, ...], brokers: int) -> None:
    with started("sh", "-c", "echo ready; read line", options=options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert sorted(children(process.pid).values()).count("bwrap") == 1
        assert len(children(process.pid)) == 1 + brokers
        ran = finish(process, "go\n")
    assert ran.code == 0
    assert (ran.summary is not None) == bool(brokers)


def test_nothing_answers_and_nothing_resolves(https_origin: HttpsOrigin) -> None:
    script = (
        f"getent ahosts origin.example; echo names $?; curl -sm 5 http://127.0.0.1:{https_origin.http}/; echo own $?;"
        "curl -sm 5 http://93.184.215.14/; echo literal $?; curl -sm 5 'http://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/';"
        "echo literal6 $?"
    )
    ran = run("sh", "-c", script)
    assert ran.out.split() == ["names", "2", "own", "7", "literal", "7", "literal6", "7"]
