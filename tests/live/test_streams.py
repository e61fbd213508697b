"""Long and large streams through the gate: whole, in constant memory, ended as they were ended."""

import hashlib
import json
import threading
import time

import pytest

from tests.live.gate import PYTHON, broker_of, finish, reaching, resident_mib, run, started
from tests.origins.https_origin import pattern
from tests.origins.process import HttpsOrigin

pytestmark = pytest.mark.live
NAME = "origin.example"
MEGABYTES = 300
SIZE = MEGABYTES << 20
MOVE = """
import hashlib, http.client, ssl, sys
scheme, port, way, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
made = {"http": lambda: http.client.HTTPConnection("origin.example", port),
        "https": lambda: http.client.HTTPSConnection("origin.example", port, context=ssl.create_default_context())}
c = made[scheme]()
if way == "down":
    c.request("GET", f"/bytes/{size}")
    r, digest = c.getresponse(), hashlib.sha256()
    while piece := r.read(1 << 20): digest.update(piece)
    print(digest.hexdigest())
else:
    piece = bytes(range(256)) * 4096
    c.request("POST", "/upload", body=(piece for _ in range(size // len(piece))), headers={"Content-Length": str(size)})
    print(c.getresponse().read().decode())
"""


def expected() -> str:
    digest, piece = hashlib.sha256(), pattern(1 << 20)
    for _ in range(MEGABYTES):
        digest.update(piece)
    return digest.hexdigest()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("way", ["down", "up"])
def test_hundreds_of_megabytes_in_constant_memory(https_origin: HttpsOrigin, scheme: str, way: str) -> None:
    port = https_origin.ports[scheme]
    command = (PYTHON, "-c", MOVE, scheme, str(port), way, str(SIZE))
    with started(*command, options=reaching(https_origin, NAME)) as process:
        broker = broker_of(process)
        sizes: list[float] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                try:
                    sizes.append(resident_mib(broker))
                except (FileNotFoundError, ProcessLookupError, AssertionError):
                    return  # a process that has ended has no memory

        watcher = threading.Thread(target=watch)
        watcher.start()
        begin = time.monotonic()
        ran = finish(process)
        over.set()
        watcher.join()
    assert ran.code == 0, ran.err
    told = ran.out.strip() if way == "down" else json.loads(ran.out)["sha256"]
    assert told == expected()
    growth = max(sizes) - sizes[0]
    print(f"{scheme} {way}: {MEGABYTES / (time.monotonic() - begin):.0f} MB/s, broker {max(sizes):.0f} MiB at most")
    assert max(sizes) < 120
    assert growth < 60
    (close,) = ran.closes()
    assert close["bytes_down" if way == "down" else "bytes_up"] >= SIZE


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_every_shape_of_response(https_origin: HttpsOrigin, scheme: str) -> None:
    base = f"{scheme}://{NAME}:{https_origin.ports[scheme]}"
    script = f"""
curl -sS {base}/bytes/1000003 | sha256sum
curl -sS {base}/chunked/1000003 | sha256sum
curl -sS {base}/close/1000003 | sha256sum
curl -sS -I {base}/bytes/77 | grep -ci 'content-length: 77'
curl -sS -o /dev/null -w '%{{http_code}}\\n' {base}/status/204
curl -sS -o /dev/null -w '%{{http_code}}\\n' {base}/status/304
curl -sS -N {base}/sse/3 | grep -c data
curl -sS {base}/cut/100000 -o /dev/null; echo cut $?
curl -sS -X POST --data-binary @/usr/bin/env -o /dev/null -w '%{{http_code}}\\n' {base}/early
"""
    ran = run("bash", "-c", script, options=reaching(https_origin, NAME))
    whole = hashlib.sha256(pattern(1_000_003)).hexdigest()
    lines = [line.split()[0] if len(line) > 60 else line for line in ran.out.splitlines()]
    assert lines[:3] == [whole] * 3, ran.err
    # A response that was cut off must not look like a whole one.
    assert lines[3:7] == ["1", "204", "304", "3"]
    assert lines[7].startswith("cut ")
    assert lines[7] != "cut 0"
    assert lines[8] == "413"


def test_what_was_written_verifies_and_names_every_byte(https_origin: HttpsOrigin) -> None:
    base = f"http://{NAME}:{https_origin.http}"
    ran = run("sh", "-c", f"curl -sS {base}/bytes/5000 | wc -c", options=reaching(https_origin, NAME))
    assert ran.out.strip() == "5000"
    (decision,), (close,) = ran.decisions(), ran.closes()
    assert close["ref"] == decision["id"]
    assert close["bytes_down"] >= 5000
    assert close["status"] == 200
    assert close["duration_ms"] > 0
    assert decision["path"] == "/bytes/5000"
