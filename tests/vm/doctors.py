"""The self-test in the machine, asked on the host and in a container, under one account and one state directory."""

import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.vm.container import ENVIRONMENT, RUNNER, lay_bundle
from tests.vm.machine import Done, Machine

PLACES = dict(one.split("=", 1) for one in ENVIRONMENT)
SERVING = ("setpriv", f"--reuid={RUNNER}", f"--regid={RUNNER}", "--clear-groups", "--")
PRODUCT = ("/usr/bin/python3", "-m", "wicketgate")
NAME = "standing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The machine itself, and a container on it that stands all the time: limits of the kernel bind engines, too."""

    vm: Machine

    def on_host(self, *words: str) -> Done:
        """Run a command line of the product on the machine itself."""
        return self.vm.run(*SERVING, *PRODUCT, *words, environment=PLACES, seconds=240)

    def in_container(self, *words: str) -> Done:
        """And in the container, with the profiles of deploy/."""
        return self.vm.run("runc", "exec", NAME, *PRODUCT, *words, seconds=240)

    def follow(self, cure: str) -> None:
        """Do what a cure says after its first colon, as a person would type it."""
        command = cure.partition(": ")[2].partition(",")[0]
        assert command.split()[0] in {"sysctl", "modprobe"}, cure
        self.vm.check(*shlex.split(command))


@contextlib.contextmanager
def stand(vm: Machine, *, apparmor: str) -> Iterator[Hosts]:
    """Start the container."""
    vm.check("install", "-d", "-m", "700", "-o", str(RUNNER), "-g", str(RUNNER), PLACES["XDG_STATE_HOME"])
    bundle = lay_bundle(vm, ("sleep", "infinity"), apparmor=apparmor, filtered=True, name=NAME)
    vm.check("sh", "-c", f"runc run --detach --bundle {bundle} {NAME} </dev/null >/dev/null 2>&1")
    try:
        yield Hosts(vm=vm)
    finally:
        vm.run("runc", "delete", "--force", NAME)


def report_of(done: Done) -> dict[str, Any]:
    """What the self-test said; its exit code is the process's."""
    report = dict(json.loads(done.stdout))
    assert done.code == report["exit_code"], done
    return report


def failures(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was found to fail, in order."""
    return [one for one in report["findings"] if one["state"] == "failed"]
