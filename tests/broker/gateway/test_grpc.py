"""gRPC through the real broker, with the real client and the real server: every kind of call, and their ends."""

import json
import ssl
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from broker.policy.authority import Authority
from broker.policy.names import parse_host_name
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up
from tests.origins.process import start_grpc
from tests.tree import ROOT

pytestmark = pytest.mark.live
HOST = "public4.example"
RULES = """
[[rule]]
name = "grpc"
action = "allow"
hosts = ["public4.example"]
ports = [{port}]
methods = ["POST"]
paths = ["/test.Echo/Unary", "/test.Echo/Collect", "/test.Echo/Count", "/test.Echo/Talk", "/test.Echo/Fail",
  "/test.Echo/FailLate", "/test.Echo/Never"]
"""
CLIENT = ROOT / "tests" / "live" / "payloads" / "grpc_calls.py"


@in_world
async def test_every_kind_of_call(world: World) -> None:
    assert world.certificates
    with start_grpc(world.directory, address=PUBLIC) as origin:
        port = origin.https
        fixed = {Authority(parse_host_name(HOST), port): (ip_address(PUBLIC),)}
        async with world.broker(RULES.format(port=port), inspect=True, fixed=fixed):
            authority = world.directory / "authority.pem"
            context = world.client_context()
            authority.write_text("".join(map(_pem, context.get_ca_certs(binary_form=True))))
            address = await world.inside(look_up, HOST)
            done = await world.inside(_call, HOST, str(port), address, authority)
            assert done.returncode == 0, done.stderr[-3000:]
            found = json.loads(done.stdout)
            print(f"one message there and back on a stream: {found.pop('talk_ms'):.2f} ms")
            denied, details = found.pop("denied")
            assert denied == "PERMISSION_DENIED"
            assert found.pop("deadline")[0] == "DEADLINE_EXCEEDED"
            assert "path_not_allowed" in details
            assert found == {
                "unary": "hello",
                "trailing": {"x-echo": "value", "x-bin": [0, 255]},
                "large": True,
                "count": list(range(200)),
                "collect": 300_000,
                "beside": "beside it",
                "talk": 300,
                "rest": 0,
                "fail": ["NOT_FOUND", "no such thing: 100% ümlaut"],
                "fail_late": ["RESOURCE_EXHAUSTED", "enough"],
                "after": "still here",
            }
            paths = [one["path"] for one in world.records() if one["verdict"] == "allow"]
            assert {path.rpartition("/")[2] for path in paths} >= {"Unary", "Count", "Collect", "Talk", "Fail", "Never"}
            assert {one["dialled"] for one in world.records("close") if one.get("dialled")} == {f"{PUBLIC}:{port}"}


def _call(host: str, port: str, address: str, authority: Path) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, str(CLIENT), host, port, address, str(authority)]
    return subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)


def _pem(certificate: bytes) -> str:
    return ssl.DER_cert_to_PEM_cert(certificate)
