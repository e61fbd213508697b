"""Limits refuse what cannot work, and become the resource limits that the kernel is given."""

import resource

import pytest
from msgspec import structs

from sandbox.limits import GIB, MIB, LimitError, Limits, Rlimit, clamp, inner_rlimits, outer_rlimits

WRONG = [
    ("memory_bytes", 0),
    ("memory_bytes", -1),
    ("memory_bytes", 1 << 63),
    ("memory_bytes", 4.0 * GIB),
    ("tasks", 1),
    ("tasks", True),
    ("cpus", 0),
    ("cpus", float("nan")),
    ("cpus", float("inf")),
    ("cpu_seconds", 0),
    ("file_bytes", 10),
    ("descriptors", 3),
    ("descriptors", "4096"),
    ("output_bytes", 0),
    ("tmp_bytes", None),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_limit_that_cannot_work_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(LimitError, match=field):
        Limits(**{field: value})  # type: ignore[arg-type]


def test_every_field_has_a_default_within_its_range() -> None:
    assert structs.asdict(Limits())["memory_bytes"] == 4 * GIB
    assert Limits(cpus=2).cpus == 2


def numbers(limits: tuple[Rlimit, ...]) -> dict[int, tuple[int, int]]:
    assert len({limit.resource for limit in limits}) == len(limits)
    return {limit.resource: (limit.soft, limit.hard) for limit in limits}


def test_outer_limits_leave_no_core_file_and_never_bound_address_space_or_tasks() -> None:
    found = numbers(outer_rlimits(Limits(), memory_bounded=False))
    assert found[resource.RLIMIT_CORE] == (0, 0)
    assert found[resource.RLIMIT_CPU] == (3600, 3605)
    assert found[resource.RLIMIT_DATA] == (4 * GIB, 4 * GIB)
    assert resource.RLIMIT_AS not in found
    assert resource.RLIMIT_NPROC not in found


def test_memory_is_bounded_once() -> None:
    assert resource.RLIMIT_DATA not in numbers(outer_rlimits(Limits(), memory_bounded=True))


def test_tasks_are_bounded_inside_the_namespace() -> None:
    assert numbers(inner_rlimits(Limits(tasks=77))) == {resource.RLIMIT_NPROC: (77, 77)}


def test_limits_only_go_down() -> None:
    hard = {resource.RLIMIT_NOFILE: 512, resource.RLIMIT_FSIZE: resource.RLIM_INFINITY}
    wanted = [
        Rlimit(resource=resource.RLIMIT_NOFILE, soft=4096, hard=4096),
        Rlimit(resource=resource.RLIMIT_FSIZE, soft=MIB, hard=MIB),
    ]
    assert numbers(clamp(wanted, hard.__getitem__)) == {
        resource.RLIMIT_NOFILE: (512, 512),
        resource.RLIMIT_FSIZE: (MIB, MIB),
    }


def test_a_zero_hard_limit_stays_zero() -> None:
    wanted = [Rlimit(resource=resource.RLIMIT_CORE, soft=5, hard=5)]
    assert numbers(clamp(wanted, lambda _: 0)) == {resource.RLIMIT_CORE: (0, 0)}
