"""Nothing is imported once root has become the service user, who may not be able to read the interpreter.

A finder that stands before all others writes down what is asked for after the change of user, in every process of the
run that is Python.
"""

import os
import signal
import subprocess
import sys

import pytest

from tests.live.runs import PATIENCE, find, line, until

pytestmark = [pytest.mark.live, pytest.mark.root_only]
CABLE = ("--allow", "origin.example")
WATCHED = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if os.getuid():
            os.write(2, f"LATE {name}\\n".encode())
        return None
sys.meta_path.insert(0, Watch())
from wicketgate.__main__ import main
main()
"""
CURL = "curl -s -m 5 http://origin.example/ https://origin.example/ http://denied.example/ https://denied.example/ https://192.0.2.1/"
WAYS = {
    "success": ("--", "true"),
    "json": ("--json", "--", "sh", "-c", "echo x; exit 3"),
    "timeout": ("--timeout", "0.3", "--", "sleep", "60"),
    "timeout of a deaf one": ("--timeout", "0.3", "--", "sh", "-c", "trap '' TERM; sleep 60; sleep 60"),
    "no such interpreter": ("--", "sh", "-c", "exec /tmp/nosuch"),
    "with a cable": (*CABLE, "--", "true"),
    "with a cable and requests": (*CABLE, "--", "sh", "-c", CURL),
    "with a cable and json": (*CABLE, "--json", "--", "true"),
    "with a workspace": ("--workspace", "{tmp}", "--", "true"),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_imported_after_the_change_of_user(way: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    words = [word.replace("{tmp}", str(tmp_path_factory.mktemp("work"))) for word in WAYS[way]]
    done = subprocess.run([sys.executable, "-c", WATCHED, "run", *words], capture_output=True, check=False, timeout=60)
    assert b"LATE" not in done.stderr, done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_the_watch_sees_a_late_import() -> None:
    program = WATCHED.partition("from wicketgate")[0] + "os.setresuid(65534, 65534, 65534)\nimport wave\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert b"LATE wave" in done.stderr


@pytest.mark.parametrize("victim", ["broker", "bwrap", "front"])
def test_nothing_is_imported_when_something_breaks(victim: str) -> None:
    command = [sys.executable, "-c", WATCHED, "run", *CABLE, "--", "sh", "-c", "echo up; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert line(run.stdout) == "up"
        broker = until(lambda: find(run.pid, "python") or find(run.pid, "python3"))
        pid = {"broker": broker, "bwrap": find(run.pid, "bwrap"), "front": run.pid}[victim]
        assert pid
        os.kill(pid, signal.SIGTERM if victim == "front" else signal.SIGKILL)
        _, told = run.communicate(timeout=PATIENCE)
        assert b"LATE" not in told, told.decode()
