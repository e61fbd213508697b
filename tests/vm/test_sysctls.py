"""Debian's kernel, told to forbid user namespaces: the self-test says by which switch, and its cure works."""

import json
import shlex

import pytest

from tests.vm.machine import Machine

SWITCHES = {
    "kernel.unprivileged_userns_clone": (
        "sysctl",
        "The kernel keeps user namespaces for root: kernel.unprivileged_userns_clone is 0.",
    ),
    "user.max_user_namespaces": ("sysctl", "The kernel refuses a user namespace: user.max_user_namespaces is 0."),
    "user.max_net_namespaces": ("sysctl", "The kernel refuses a network namespace: user.max_net_namespaces is 0."),
    "user.max_mnt_namespaces": ("sysctl", "The kernel refuses a mount namespace: user.max_mnt_namespaces is 0."),
    "user.max_pid_namespaces": ("sysctl", "The kernel refuses a pid namespace: user.max_pid_namespaces is 0."),
}
DOCTOR = (
    "setpriv",
    "--reuid",
    "1000",
    "--regid",
    "1000",
    "--clear-groups",
    "python3",
    "-m",
    "wicketgate",
    "doctor",
    "--json",
)
PLACE = {"PYTHONPATH": "/project:/project/site", "XDG_STATE_HOME": "/tmp/state-of-1000"}


def examine(vm: Machine) -> tuple[int | None, dict[str, object]]:
    vm.check("install", "-d", "-o", "1000", "-g", "1000", PLACE["XDG_STATE_HOME"])
    done = vm.run(*DOCTOR, environment=PLACE, seconds=240)
    return done.code, json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_switch_is_named_and_its_cure_works(vm: Machine, name: str) -> None:
    before = vm.check("sysctl", "-n", name).strip()
    vm.check("sysctl", "-w", f"{name}=0")
    try:
        code, report = examine(vm)
        assert code == 78
        findings = report["findings"]
        assert isinstance(findings, list)
        failed = next(one for one in findings if one["state"] == "failed")
        assert (failed["layer"], failed["sentence"]) == SWITCHES[name]
        cure = failed["cure"].partition(": ")[2].partition(",")[0]
        assert cure.startswith("sysctl -w")
        vm.check(*shlex.split(cure))
        code, report = examine(vm)
        assert code == 0, report
    finally:
        vm.check("sysctl", "-w", f"{name}={before}")


def test_a_host_where_all_is_well(vm: Machine) -> None:
    code, report = examine(vm)
    assert (code, report["modes"]) == (0, {"sandbox": True, "bridge": True})
