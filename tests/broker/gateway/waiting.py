"""Proof that a test has made the code wait: which handlers of EAGAIN of some modules were entered while it ran.

The interpreter itself reports the lines (sys.monitoring, PEP 669); nothing of the code is replaced.
"""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

WORDS: Final = ("BlockingIOError", "SSLWantReadError", "SSLWantWriteError")
TOOL: Final = sys.monitoring.DEBUGGER_ID
type Place = tuple[str, int]


class Waits:
    """The handlers wanted, by file and line, with the function of each; and those that were entered."""

    def __init__(self, wanted: dict[Place, str]) -> None:
        self.wanted = wanted
        self.entered: set[Place] = set()

    def missing(self) -> list[str]:
        """The handlers that were not entered."""
        return [name for place, name in self.wanted.items() if place not in self.entered]


@contextmanager
def told_to_wait(*modules: ModuleType, without: tuple[str, ...] = ()) -> Iterator[Waits]:
    """Watch every handler of EAGAIN in these modules; `without`: functions that the test cannot reach."""
    wanted = {place: name for module in modules for place, name in _handlers(module) if name not in without}
    waits = Waits(wanted)
    lines = {line for _, line in wanted}

    def on_line(code: CodeType, line: int) -> object:
        if line in lines and (code.co_filename, line) in wanted:
            waits.entered.add((code.co_filename, line))
        return sys.monitoring.DISABLE  # once is enough

    sys.monitoring.use_tool_id(TOOL, "waiting")
    sys.monitoring.register_callback(TOOL, sys.monitoring.events.LINE, on_line)
    for code in {code for module in modules for code in _codes(module)}:
        sys.monitoring.set_local_events(TOOL, code, sys.monitoring.events.LINE)
    try:
        yield waits
    finally:
        sys.monitoring.free_tool_id(TOOL)


def _handlers(module: ModuleType) -> Iterator[tuple[Place, str]]:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    for owner in tree.body:
        for function in ast.walk(owner):
            if isinstance(function, ast.FunctionDef):
                name = function.name if function is owner else f"{getattr(owner, 'name', '')}.{function.name}"
                for node in ast.walk(function):
                    if isinstance(node, ast.ExceptHandler) and node.type and _waits(node.type):
                        yield (module.__file__, node.body[0].lineno), name


def _waits(caught: ast.expr) -> bool:
    return any(word in ast.unparse(caught) for word in WORDS)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
    for owner in owners:
        for one in vars(owner).values():
            if isinstance(one, FunctionType) and one.__module__ == module.__name__:
                yield one.__code__
