"""The machine has what it is there for."""

from tests.vm.machine import Machine


def test_the_kernel_is_debians_with_apparmor_and_control_groups(vm: Machine) -> None:
    assert "Debian" in vm.check("uname", "-v")
    assert vm.check("cat", "/sys/module/apparmor/parameters/enabled") == "Y\n"
    assert {"memory", "pids", "cpu"} <= set(vm.check("cat", "/sys/fs/cgroup/cgroup.controllers").split())


def test_what_a_command_does_comes_back(vm: Machine) -> None:
    done = vm.run("sh", "-c", "cat; echo trouble >&2; exit 7", given=b"text\n")
    assert (done.code, done.stdout, done.stderr) == (7, "text\n", "trouble\n")
    assert vm.run("sleep", "60", seconds=0.2).code is None
    assert vm.run("/nonexistent").code == 127
    assert vm.check("ls", "/project/wicketgate/cli.py")
