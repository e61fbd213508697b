"""The assembled filters mean what the description says, on both architectures, whatever the arguments."""

import errno
import itertools
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.seccomp import Architecture, FilterMode, UnsupportedArchitectureError, committed, file_name, filter_for
from sandbox.seccomp import __main__ as command
from sandbox.seccomp.assemble import RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS, RET_LOG, assemble, return_value
from sandbox.seccomp.description import GROUPS
from sandbox.seccomp.program import rules_for
from sandbox.seccomp.rules import Action, Case, Condition, Rule, Test, Width
from tests.sandbox.seccomp.machine import Outcome, run

both = pytest.mark.parametrize("architecture", Architecture)
EPERM, ENOSYS = RET_ERRNO | errno.EPERM, RET_ERRNO | errno.ENOSYS
HIGH = 1 << 32  # a bit that the kernel drops from an int argument


def ask(architecture: Architecture, name: str, *arguments: int, mode: FilterMode = FilterMode.ENFORCE) -> Outcome:
    number = architecture.numbers[name]
    return run(filter_for(architecture, mode), arch=architecture.audit_arch, number=number, arguments=arguments)


def test_every_known_call_stands_in_exactly_one_group() -> None:
    described = sorted(itertools.chain.from_iterable(group.calls for group in GROUPS))
    known = sorted({name for architecture in Architecture for name in architecture.numbers})
    assert described == known


@pytest.mark.parametrize(
    ("architecture", "name", "number"),
    [
        (Architecture.X86_64, "read", 0),
        (Architecture.X86_64, "openat", 257),
        (Architecture.X86_64, "clone3", 435),
        (Architecture.X86_64, "rseq", 334),
        (Architecture.AARCH64, "read", 63),
        (Architecture.AARCH64, "openat", 56),
        (Architecture.AARCH64, "mmap", 222),
        (Architecture.AARCH64, "clone3", 435),
        (Architecture.AARCH64, "newfstatat", 79),
    ],
)
def test_the_number_tables_agree_with_the_kernel_headers(architecture: Architecture, name: str, number: int) -> None:
    assert architecture.numbers[name] == number


@both
def test_numbers_are_unique(architecture: Architecture) -> None:
    assert len(set(architecture.numbers.values())) == len(architecture.numbers)


@both
@given(data=st.data())
def test_the_program_answers_as_the_description_for_any_arguments(
    architecture: Architecture, data: st.DataObject
) -> None:
    number = data.draw(st.sampled_from(sorted(rules_for(architecture))))
    rule = rules_for(architecture)[number]
    constants = [condition.value for case in rule.cases for condition in case.when] or [0]
    near = st.sampled_from(constants).flatmap(
        lambda value: st.sampled_from([value, value | HIGH, value + 1, value ^ 1, value | value << 32, value << 32])
    )
    arguments = data.draw(st.lists(near | st.integers(0, (1 << 64) - 1), min_size=6, max_size=6))
    outcome = run(filter_for(architecture), arch=architecture.audit_arch, number=number, arguments=arguments)
    assert outcome.word == return_value(rule.answer(arguments))


@both
def test_a_number_outside_the_table_is_answered_like_an_old_kernel(architecture: Architecture) -> None:
    program = filter_for(architecture)
    known = set(architecture.numbers.values())
    numbers = [n for n in range(1200) if n not in known] + [1 << 30, (1 << 30) + 41, (1 << 31) - 1, 1 << 31, -1]
    answers = {run(program, arch=architecture.audit_arch, number=number).word for number in numbers}
    assert answers == {ENOSYS}


def test_the_x32_twin_of_an_allowed_call_does_not_exist() -> None:
    for number in Architecture.X86_64.numbers.values():
        twin = run(filter_for(Architecture.X86_64), arch=Architecture.X86_64.audit_arch, number=number | 0x4000_0000)
        assert twin.word == ENOSYS


@both
@pytest.mark.parametrize("arch", [0x40000003, 0x40000028, 0, 0xFFFF_FFFF, 0xC0000000])
def test_another_architectures_entry_point_kills(architecture: Architecture, arch: int) -> None:
    for number in range(500):
        assert run(filter_for(architecture), arch=arch, number=number).word == RET_KILL_PROCESS


@pytest.mark.parametrize(("program", "other"), list(itertools.permutations(Architecture, 2)))
def test_the_filters_refuse_each_others_architecture(program: Architecture, other: Architecture) -> None:
    assert run(filter_for(program), arch=other.audit_arch, number=0).word == RET_KILL_PROCESS


@both
@pytest.mark.parametrize("mode", FilterMode)
def test_calls_decided_by_number_alone_fit_the_kernels_bitmap(architecture: Architecture, mode: FilterMode) -> None:
    for name, number in architecture.numbers.items():
        rule = rules_for(architecture)[number]
        if not rule.cases:
            outcome = ask(architecture, name, mode=mode)
            assert not outcome.saw_arguments
            assert outcome.steps <= 14


@both
def test_every_jump_stays_inside_and_every_path_returns(architecture: Architecture) -> None:
    for mode in FilterMode:
        code = list(struct.iter_unpack("<HBBI", filter_for(architecture, mode)))
        assert 0 < len(code) <= 4096
        assert code[-1][0] == 0x06
        for index, (operation, jt, jf, k) in enumerate(code):
            targets = [k] if operation == 0x05 else [jt, jf]
            assert all(index + 1 + target < len(code) for target in targets) or operation == 0x06


@both
@pytest.mark.parametrize("command", [1024, 1040])
def test_leases_are_refused_whatever_the_high_word(architecture: Architecture, command: int) -> None:
    for high in (0, 1, 0xFFFF_FFFF):
        assert ask(architecture, "fcntl", 0, high << 32 | command).word == EPERM
    assert ask(architecture, "fcntl", 0, command + 1).word == RET_ALLOW


@both
def test_flags_of_namespaces_and_siblings_are_refused_one_by_one_and_with_high_bits(architecture: Architecture) -> None:
    for bit in range(32):
        refused = bool(1 << bit & 0x7E02_8000)  # namespaces, and CLONE_PARENT
        assert (ask(architecture, "clone", 1 << bit | 17).word == EPERM) is refused
        assert (ask(architecture, "clone", 1 << bit | HIGH).word == EPERM) is refused


@both
@pytest.mark.parametrize("request_number", [0x5412, 0x541C, 0x5423])
def test_terminal_injection_is_refused_whatever_the_high_word(architecture: Architecture, request_number: int) -> None:
    for high in (0, 1, 0xDEAD_BEEF, 0xFFFF_FFFF):
        assert ask(architecture, "ioctl", 0, high << 32 | request_number).word == EPERM
    assert ask(architecture, "ioctl", 0, 0x5413).word == RET_ALLOW


@both
@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000, 0o4755, 0o2755, 0o6777])
def test_set_id_modes_are_refused_in_every_call_that_takes_a_mode(architecture: Architecture, bits: int) -> None:
    mode_at = {"chmod": 1, "fchmod": 1, "creat": 1, "mkdir": 1, "mknod": 1, "fchmodat": 2, "fchmodat2": 2, "mkdirat": 2}
    for name, index in (mode_at | {"mknodat": 2}).items():
        if name in architecture.numbers:
            assert ask(architecture, name, *[0] * index, bits).word == EPERM
            assert ask(architecture, name, *[0] * index, bits | HIGH | 0o1_000000).word == EPERM
            assert ask(architecture, name, *[0] * index, 0o1777).word == RET_ALLOW


@both
def test_open_judges_the_mode_only_when_a_file_is_made(architecture: Architecture) -> None:
    for flags, refused in [
        (0, False),
        (0o2, False),
        (0o100, True),
        (0o102, True),
        (0o20200002, True),
        (0o200000, False),
    ]:
        assert (ask(architecture, "openat", 0, 0, flags, 0o4755).word == EPERM) is refused
        if "open" in architecture.numbers:
            assert (ask(architecture, "open", 0, flags, 0o4755).word == EPERM) is refused
    assert ask(architecture, "openat", 0, 0, 0o102, 0o755).word == RET_ALLOW


@both
def test_socket_families_types_and_protocols(architecture: Architecture) -> None:
    allowed = {(1, 1, 0), (1, 2, 0), (1, 5, 0), (16, 3, 0), (16, 2, 0)}
    allowed |= {(family, kind, p) for family in (2, 10) for kind in (1, 2) for p in (0, 1, 6, 17, 58)}
    for family in range(64):
        for kind, protocol in itertools.product(range(11), (0, 1, 4, 6, 12, 15, 17, 33, 58, 115, 132, 136, 255, 262)):
            word = ask(architecture, "socket", family, kind | 0o2004000, protocol).word
            if family == 1 or (family == 16 and protocol == 0) or (family, kind, protocol) in allowed:
                assert word == RET_ALLOW
            elif family in (2, 10) and kind == 1:
                assert word == RET_ERRNO | errno.EPROTONOSUPPORT
            else:
                assert word == EPERM, (family, kind, protocol)


@both
def test_a_family_with_high_bits_is_judged_as_the_kernel_reads_it(architecture: Architecture) -> None:
    assert ask(architecture, "socket", HIGH | 40, 1, 0).word == EPERM
    assert ask(architecture, "socket", HIGH | 1, 1, 0).word == RET_ALLOW


@both
def test_log_mode_notes_what_enforce_refuses_and_allows_the_rest(architecture: Architecture) -> None:
    for name, number in architecture.numbers.items():
        enforced = ask(architecture, name).word
        logged = ask(architecture, name, mode=FilterMode.LOG).word
        if name in ("clone3", "openat2"):
            assert enforced == logged == ENOSYS
        else:
            assert logged == (RET_ALLOW if enforced == RET_ALLOW else RET_LOG), (name, number)


@both
def test_log_mode_kills_nothing(architecture: Architecture) -> None:
    program = filter_for(architecture, FilterMode.LOG)
    assert run(program, arch=0x40000003, number=1).word == RET_LOG
    assert run(program, arch=architecture.audit_arch, number=4000).word == RET_LOG


LONG_CASES = [
    (Test.EQUAL, -1, 5, 5, True),
    (Test.EQUAL, -1, 5, 5 | HIGH, False),
    (Test.EQUAL, -1, 5 | HIGH, 5 | HIGH, True),
    (Test.EQUAL, -1, 5 | HIGH, 5, False),
    (Test.EQUAL, HIGH | 0xFF, HIGH | 5, (1 << 40) | HIGH | 0x105, True),
    (Test.ANY_BIT, -1, HIGH | 1, 1, True),
    (Test.ANY_BIT, -1, HIGH | 1, HIGH, True),
    (Test.ANY_BIT, -1, HIGH | 1, (1 << 33) | 2, False),
    (Test.ANY_BIT, -1, HIGH, 1, False),
    (Test.ANY_BIT, -1, HIGH, HIGH, True),
]


@pytest.mark.parametrize(("test", "mask", "value", "argument", "holds"), LONG_CASES)
def test_long_arguments_are_compared_by_both_words(
    test: Test, mask: int, value: int, argument: int, holds: bool
) -> None:
    condition = Condition(argument=3, test=test, value=value, mask=mask, width=Width.LONG)
    rule = Rule(cases=(Case(when=(condition,), then=Action.EPERM),), otherwise=Action.ALLOW)
    returns = {action: return_value(action) for action in Action}
    program = assemble(audit_arch=1, rules={7: rule}, unknown=0, foreign=0, returns=returns)
    word = run(program, arch=1, number=7, arguments=[0, 0, 0, argument]).word
    assert (word == EPERM) is holds
    assert condition.holds([0, 0, 0, argument, 0, 0]) is holds


def test_an_impossible_condition_cannot_be_written() -> None:
    for wrong in ({"argument": 6}, {"value": HIGH}, {"mask": HIGH}, {"test": Test.ANY_BIT, "value": 0}):
        with pytest.raises(ValueError, match=r"condition|bits"):
            Condition(**({"argument": 0, "test": Test.EQUAL, "value": 1} | wrong))  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("mode", FilterMode)
def test_the_committed_programs_are_a_rebuild(architecture: Architecture, mode: FilterMode) -> None:
    assert (command.PACKAGE / file_name(architecture, mode)).read_bytes() == filter_for(architecture, mode)
    assert committed(architecture, mode) == filter_for(architecture, mode)


def test_check_names_the_stale_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.write(tmp_path)
    assert command.check(tmp_path) == []
    stale = tmp_path / "aarch64.bpf"
    stale.write_bytes(stale.read_bytes()[:-1] + b"\x01")
    assert command.check(tmp_path) == ["aarch64.bpf"]
    stale.unlink()
    assert command.check(tmp_path) == ["aarch64.bpf"]
    assert command.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_show_gives_every_group_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--show"]) == 0
    shown = capsys.readouterr().out
    assert all(group.why in shown and group.name in shown for group in GROUPS)


def test_an_unsupported_machine_is_refused_by_name() -> None:
    assert Architecture.of("x86_64") is Architecture.X86_64
    for machine in ("i686", "armv7l", "riscv64", "", "X86_64"):
        with pytest.raises(UnsupportedArchitectureError, match="supported: x86_64, aarch64"):
            Architecture.of(machine)
