"""A hundred runs at once are a hundred right runs."""

import subprocess
import time

import pytest

from tests.live.runs import adopted, start
from tests.origins.process import HttpsOrigin

pytestmark = [pytest.mark.live, pytest.mark.alone]
MANY = 100


def memory_available() -> int:
    with open("/proc/meminfo") as file:
        return next(int(row.split()[1]) for row in file if row.startswith("MemAvailable"))


def all_at_once(*words: str, expected: bytes) -> None:
    with adopted() as left:
        free, before = memory_available(), time.monotonic()
        runs = [start(*words, str(number), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for number in range(MANY)]
        least = free
        for number, run in enumerate(runs):
            least = min(least, memory_available())
            told, said = run.communicate(timeout=300)
            assert run.returncode == number % 100, said.decode()
            assert told == expected + b"%d\n" % number, said.decode()
        took = time.monotonic() - before
        print(f"\n{MANY} runs of {words[:2]}: {took:.1f} s, {(free - least) / 1024 / MANY:.1f} MiB each at the peak")
        assert left() == []


def test_a_hundred_without_a_network() -> None:
    all_at_once("--", "sh", "-c", 'echo "$0"; exit $(($0 % 100))', expected=b"")


def test_a_hundred_with_a_cable(https_origin: HttpsOrigin) -> None:
    authority = f"origin.example:{https_origin.http}"
    fetch = (
        f'code=$(curl -s --max-time 200 -o /tmp/body -w "%{{http_code}}" http://{authority}/);'
        '[ "$code" = 200 ] || cat /tmp/body >&2; echo "$code $0"; exit $(($0 % 100))'
    )
    words = ("--allow", authority, "--resolve", f"{authority}:127.0.0.1", "--private", "127.0.0.1/32")
    all_at_once(*words, "--", "sh", "-c", fetch, expected=b"200 ")
