"""`python -m sandbox.seccomp --check | --write | --show`: keep the committed programs equal to the description.

`--check` rebuilds and compares (exit 1 and the names of stale files, for CI), `--write` regenerates, `--show` prints
the description as a table for people. This module is the only one here that writes files.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from sandbox.seccomp.architecture import Architecture
from sandbox.seccomp.description import FOREIGN_ARCHITECTURE, GROUPS, UNKNOWN
from sandbox.seccomp.program import FilterMode, file_name, filter_for
from sandbox.seccomp.rules import Case, Condition, Group, Test, Width

PACKAGE = Path(__file__).resolve().parent


def programs() -> Iterator[tuple[str, bytes]]:
    """File name and rebuilt bytes of every committed program."""
    for architecture in Architecture:
        for mode in FilterMode:
            yield file_name(architecture, mode), filter_for(architecture, mode)


def check(directory: Path) -> list[str]:
    """Names of the programs that are missing in `directory` or differ from a rebuild."""
    stale = []
    for name, program in programs():
        path = directory / name
        if not path.is_file() or path.read_bytes() != program:
            stale.append(name)
    return stale


def write(directory: Path) -> None:
    """Regenerate every program."""
    for name, program in programs():
        (directory / name).write_bytes(program)


def show() -> str:
    """The description as text: one block a group, the action of each call and the reason."""
    lines = [f"number not in the table: {UNKNOWN.value} · another architecture: {FOREIGN_ARCHITECTURE.value}"]
    for group in GROUPS:
        lines += ["", f"{group.name}: {_answer(group)}", f"  {group.why}", f"  {' '.join(group.calls)}"]
    return "\n".join(lines)


def _answer(group: Group) -> str:
    cases = "; ".join(_case(case) for case in group.rule.cases)
    return f"{cases}; else {group.rule.otherwise.value}" if cases else group.rule.otherwise.value


def _case(case: Case) -> str:
    return f"{case.then.value} if {' and '.join(_condition(condition) for condition in case.when)}"


def _condition(condition: Condition) -> str:
    argument = f"arg{condition.argument}" + (":64" if condition.width is Width.LONG else "")
    if condition.test is Test.EQUAL:
        masked = argument if condition.mask == -1 else f"({argument} & {condition.mask:#x})"
        return f"{masked} == {condition.value:#x}"
    return f"{argument} {condition.test.value} {condition.value:#x}"


def main(arguments: list[str]) -> int:
    """Run one of the three; the exit code says whether the committed programs are right."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.seccomp", description="Check or rebuild the filters.")
    choice = parser.add_mutually_exclusive_group(required=True)
    for name in ("check", "write", "show"):
        choice.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args(arguments)
    if options.show:
        print(show())
        return 0
    if options.write:
        write(PACKAGE)
    stale = check(PACKAGE)
    for name in stale:
        print(f"{name}: differs from the description; run python -m sandbox.seccomp --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
