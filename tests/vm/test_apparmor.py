"""The AppArmor profile, enforced by Debian's kernel: sandboxes start under it, other acts fail, causes are named."""

import json
import re

import pytest

from tests.tree import ROOT
from tests.vm.container import in_container, lay_bundle, lay_root, wicketgate
from tests.vm.machine import Machine

PROFILE = (ROOT / "deploy/apparmor/wicketgate").read_text()
# What an engine's own profile does that knows nothing of sandboxes: mounts are refused, the rest is not looked at.
LIKE_AN_ENGINES = """
abi <abi/4.0>,
profile like-an-engines flags=(attach_disconnected,mediate_deleted) {
  file, network, capability, umount, unix, ptrace, userns,
  signal,
  deny mount,
}
"""
# Each needs only what a user has in a user namespace of its own, so that the kernel alone does not refuse it.
ACTS = {
    "an overlay": "cd /tmp && mkdir a b c && mount -t overlay overlay -o lowerdir=a,upperdir=b,workdir=c /tmp",
    "a ramfs": "mount -t ramfs ramfs /tmp",
    "a control group tree": "mount -t cgroup2 cgroup2 /tmp",
    "chroot": "chroot / true",
    "the clock of a time namespace": "unshare --time --monotonic 5 true",
    "a limit of its user namespace": "echo 7 >/proc/sys/user/max_mnt_namespaces",
    "a limit of its message queues": "echo 7 >/proc/sys/fs/mqueue/queues_max",
}


def load(vm: Machine, text: str) -> None:
    done = vm.run("apparmor_parser", "--replace", "--skip-cache", given=text.encode())
    assert done.code == 0, done


PREPARED: list[Machine] = []


@pytest.fixture
def loaded(vm: Machine) -> Machine:
    if any(one is vm for one in PREPARED):
        return vm
    load(vm, PROFILE)
    load(
        vm,
        re.sub(r"^  userns,$", "  deny userns,", PROFILE, flags=re.MULTILINE).replace(
            "profile wicketgate ", "profile no-userns "
        ),
    )
    load(vm, LIKE_AN_ENGINES)
    lay_root(vm)
    PREPARED.append(vm)
    return vm


def test_sandboxes_start_under_the_profile_and_hold(loaded: Machine) -> None:
    label = in_container(loaded, "cat", "/proc/self/attr/current", apparmor="wicketgate")
    assert label.stdout.strip("\0\n") == "wicketgate (enforce)"
    done = wicketgate(loaded, "doctor", "--json", apparmor="wicketgate")
    assert done.code == 0, done
    report = json.loads(done.stdout)
    assert report["modes"] == {"sandbox": True, "bridge": True}
    assert report["facts"]["apparmor"] == "wicketgate (enforce)"


def test_everything_in_a_sandbox_is_under_the_profile_too(loaded: Machine) -> None:
    done = wicketgate(loaded, "run", "--", "cat", "/proc/self/attr/current", apparmor="wicketgate")
    assert (done.code, done.stdout.strip("\0\n")) == (0, "wicketgate (enforce)"), done


@pytest.mark.parametrize("act", sorted(ACTS))
def test_what_no_sandbox_needs_is_refused(loaded: Machine, act: str) -> None:
    command = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc", "--cgroup", "sh", "-c", ACTS[act])
    # Without the seccomp profile, which refuses some of these by itself: here AppArmor alone decides.
    without = in_container(loaded, *command, apparmor="", filtered=False)
    under = in_container(loaded, *command, apparmor="wicketgate", filtered=False)
    assert without.code == 0, ("the oracle", without)
    assert under.code != 0, under


def test_stopping_works(loaded: Machine) -> None:
    done = wicketgate(
        loaded, "run", "--timeout", "1", "--", "sh", "-c", "trap '' TERM; sleep 300 & wait", apparmor="wicketgate"
    )
    assert done.code == 124, done


def can_be_stopped(vm: Machine, profile: str) -> bool:
    """Whether the runtime's signal ends a container's first process that is under `profile`."""
    argv = ("sh", "-c", "trap 'exit 7' TERM; sleep 300 & wait")
    bundle = lay_bundle(vm, argv, apparmor=profile, filtered=True, name="stopped")
    vm.check("sh", "-c", f"runc run --detach --bundle {bundle} stopped </dev/null >/dev/null 2>&1")
    pid = json.loads(vm.check("runc", "state", "stopped"))["pid"]
    try:
        assert vm.check("cat", f"/proc/{pid}/attr/current").strip("\0\n") == f"{profile} (enforce)"
        if vm.run("runc", "kill", "stopped", "TERM").code != 0:
            return False
        vm.check("sh", "-c", f"for n in $(seq 200); do [ -e /proc/{pid}/exe ] || exit 0; sleep 0.05; done; exit 1")
        return True
    finally:
        vm.run("kill", "-KILL", str(pid))  # not by the runtime, which may have no right to
        vm.run("runc", "delete", "--force", "stopped")


def test_an_unconfined_engine_can_stop_what_the_profile_confines(loaded: Machine) -> None:
    assert can_be_stopped(loaded, "wicketgate")


@pytest.mark.parametrize("name", ["runc", "/usr/sbin/runc"])
def test_an_engine_with_a_profile_of_its_own_can_stop_it_too(loaded: Machine, name: str) -> None:
    """As newer distributions give their runtimes one, by either kind of name. The oracle has no rule for it."""
    load(loaded, f"abi <abi/4.0>,\nprofile {name} /usr/sbin/runc flags=(unconfined) {{\n  userns,\n}}\n")
    deaf = re.sub(r"^  signal \(receive\) peer=(\{runc|/usr).*$", "", PROFILE, flags=re.MULTILINE)
    load(loaded, deaf.replace("profile wicketgate ", "profile deaf "))
    try:
        assert can_be_stopped(loaded, "wicketgate")
        assert not can_be_stopped(loaded, "deaf")
    finally:
        loaded.check("sh", "-c", f"printf %s {name} >/sys/kernel/security/apparmor/.remove")


@pytest.mark.parametrize(
    ("profile", "check", "what"),
    [
        ("no-userns", "user_namespace", "a user namespace"),
        ("like-an-engines", "mount", "a mount in the runner's own namespace"),
    ],
)
def test_the_diagnosis_names_apparmor(loaded: Machine, profile: str, check: str, what: str) -> None:
    done = wicketgate(loaded, "doctor", "--json", apparmor=profile)
    report = json.loads(done.stdout)
    failed = next(one for one in report["findings"] if one["state"] == "failed")
    assert done.code == 78
    assert (failed["check"], failed["layer"]) == (check, "apparmor")
    assert failed["sentence"] == f"The AppArmor profile {profile} (enforce) around this process forbids {what}."
    assert "apparmor_parser -r deploy/apparmor/wicketgate" in failed["cure"]
    assert report["modes"] == {"sandbox": False, "bridge": report["modes"]["bridge"]}
    run = wicketgate(loaded, "run", "--", "echo", "unsandboxed", apparmor=profile)
    assert (run.code, run.stdout) == (125, "")


def test_the_hosts_profile_is_taken_by_the_kernel(loaded: Machine) -> None:
    load(loaded, (ROOT / "deploy/apparmor/wicketgate-host").read_text())
    assert "wicketgate-host (unconfined)" in loaded.check("cat", "/sys/kernel/security/apparmor/profiles")
