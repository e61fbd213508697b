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
    command = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--cgroup", "sh", "-c", ACTS[act])
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


def test_the_engine_can_stop_what_the_profile_confines(loaded: Machine) -> None:
    argv = ("sh", "-c", "trap 'exit 7' TERM; sleep 300 & wait")
    bundle = lay_bundle(loaded, argv, apparmor="wicketgate", filtered=True, name="stopped")
    loaded.check("sh", "-c", f"runc run --detach --bundle {bundle} stopped </dev/null >/dev/null 2>&1")
    try:
        pid = json.loads(loaded.check("runc", "state", "stopped"))["pid"]
        assert loaded.check("cat", f"/proc/{pid}/attr/current").strip("\0\n") == "wicketgate (enforce)"
        loaded.check("runc", "kill", "stopped", "TERM")
        loaded.check("sh", "-c", f"for n in $(seq 200); do [ -e /proc/{pid}/exe ] || exit 0; sleep 0.05; done; exit 1")
    finally:
        loaded.run("runc", "delete", "--force", "stopped")


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
