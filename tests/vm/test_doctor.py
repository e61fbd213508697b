"""Debian's kernel, made to forbid or to lack something: the self-test names it, on the host and in a container in the
same words, its cure works, and nothing is run without its sandbox.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.vm.doctors import Hosts, failures, report_of, stand
from tests.vm.machine import Machine
from tests.vm.test_apparmor import PROFILE, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is taken away (a script of the machine's root) and what is said. `sandbox`: one without a network works."""

    lack: str
    layer: str
    sentence: str
    sandbox: bool = False
    back: str = "true"


def switch(name: str, sentence: str, *, sandbox: bool = False) -> Situation:
    """A switch of the kernel, off."""
    return Situation(lack=f"sysctl -w {name}=0", layer="sysctl", sentence=sentence, sandbox=sandbox)


def module(name: str, sentence: str) -> Situation:
    """A module that is not loaded, and does not come by itself. Namespaces that used it end in their own time."""
    return Situation(
        lack=(
            f"echo 'blacklist {name}' >/etc/modprobe.d/absent.conf; n=0; "
            f"while grep -q '^{name} ' /proc/modules; do modprobe -r nft_tproxy nft_reject_inet {name} 2>/dev/null; "
            "n=$((n + 1)); [ $n -lt 200 ] || exit 1; sleep 0.1; done"
        ),
        layer="kernel",
        sentence=f"The kernel lacks what is needed for {sentence}",
        sandbox=True,
        back="rm -f /etc/modprobe.d/absent.conf",
    )


KEPT: Final = r"^(user\.max_|kernel\.unprivileged_userns_clone)"
CAPTURE: Final = "the capture rules (nf_tables with tproxy): "
SITUATIONS: Final = {
    "userns_clone": switch(
        "kernel.unprivileged_userns_clone",
        "The kernel keeps user namespaces for root: kernel.unprivileged_userns_clone is 0.",
    ),
    "user namespaces": switch(
        "user.max_user_namespaces", "The kernel refuses a user namespace: user.max_user_namespaces is 0."
    ),
    "network namespaces": switch(
        "user.max_net_namespaces", "The kernel refuses a network namespace: user.max_net_namespaces is 0."
    ),
    "mount namespaces": switch(
        "user.max_mnt_namespaces", "The kernel refuses a mount namespace: user.max_mnt_namespaces is 0."
    ),
    "pid namespaces": switch(
        "user.max_pid_namespaces", "The kernel refuses a pid namespace: user.max_pid_namespaces is 0."
    ),
    "uts namespaces": switch(
        "user.max_uts_namespaces",
        "The kernel refuses a host name of the sandbox's own: user.max_uts_namespaces is 0.",
    ),
    "no veth": module("veth", "the cable (a veth pair, its addresses and routes): create the veth pair: "),
    "no nf_tables": module("nf_tables", f"{CAPTURE}begin the rule batch: "),
    "no tproxy": module("nft_tproxy", f"{CAPTURE}add a rule to capture: "),
    "clock": Situation(
        lack="date -s '2020-01-01 00:00:00'",
        layer="clock",
        sentence="The clock says 2020-01-01, which is before this version was made: no certificate would be valid.",
        sandbox=True,
    ),
}


@pytest.fixture
def hosts(vm: Machine) -> Iterator[Hosts]:
    load(vm, PROFILE)
    with stand(vm, apparmor="wicketgate") as made:
        yield made


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_missing_is_named_alike_everywhere_and_its_cure_works(hosts: Hosts, name: str) -> None:
    situation = SITUATIONS[name]
    kept = hosts.vm.check("sysctl", "-a", "-r", KEPT).replace(" = ", "=").split()
    try:
        hosts.vm.check("sh", "-c", situation.lack)
        report = report_of(hosts.on_host("doctor", "--json"))
        found = failures(report)
        assert report["exit_code"] == 78
        assert found[0]["layer"] == situation.layer
        assert found[0]["sentence"].startswith(situation.sentence)
        assert report["modes"] == {"sandbox": situation.sandbox, "bridge": False}
        assert failures(report_of(hosts.in_container("doctor", "--json"))) == found
        run = hosts.in_container("run", "--", "echo", "in a sandbox")
        assert (run.code, run.stdout) == ((0, "in a sandbox\n") if situation.sandbox else (125, "")), run

        if situation.layer == "clock":
            assert found[0]["cure"].startswith("Set the clock")
            hosts.vm.check("date", "-s", f"@{time.time():.0f}")
        else:
            hosts.follow(found[0]["cure"])
        assert report_of(hosts.in_container("doctor", "--json"))["exit_code"] == 0
    finally:
        hosts.vm.check("sh", "-c", situation.back)
        hosts.vm.check("date", "-s", f"@{time.time():.0f}")
        hosts.vm.check("sysctl", "-w", *kept)


def test_where_all_is_well_both_say_so(hosts: Hosts) -> None:
    def told(report: dict[str, Any]) -> list[dict[str, Any]]:
        return [one for one in report["findings"] if one["check"] != "cgroups"]  # a container is given no group

    host, container = (report_of(ask("doctor", "--json")) for ask in (hosts.on_host, hosts.in_container))
    assert host["modes"] == container["modes"] == {"sandbox": True, "bridge": True}
    assert told(host) == told(container)
    said = hosts.in_container("doctor")
    assert said.code == 0
    assert all(one["sentence"] in said.stdout for one in container["findings"])
