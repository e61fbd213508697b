"""Rules by system call number → classic BPF for `seccomp(2)`, without libseccomp.

Shape: check the architecture, load the number, walk a binary tree over ranges of numbers, and at a leaf either return
or look at arguments. A call whose answer does not depend on arguments is decided with loads of `arch` and `nr` and with
jumps only; the kernel (≥ 5.11) recognises that and answers such calls from a bitmap without running the program.

Pure: no clock, no environment, no order of a set or of a hash enters the result.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox.seccomp.rules import WORD, Action, Condition, Rule, Test, Width

# linux/bpf_common.h and linux/seccomp.h
LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
JUMP = 0x05  # BPF_JMP | BPF_JA
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
MASK = 0x54  # BPF_ALU | BPF_AND | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENTS = 0, 4, 16  # struct seccomp_data
MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS
FAR = 255  # a conditional jump holds eight bits

RET_KILL_PROCESS, RET_ERRNO, RET_LOG, RET_ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFC_0000, 0x7FFF_0000


@dataclass(frozen=True, slots=True)
class Instruction:
    """One `struct sock_filter`."""

    code: int
    k: int
    jt: int = 0
    jf: int = 0

    def encode(self) -> bytes:
        """Eight bytes, little-endian like both architectures."""
        return struct.pack("<HBBI", self.code, self.jt, self.jf, self.k)


type Code = tuple[Instruction, ...]


def return_value(action: Action) -> int:
    """The SECCOMP_RET_* word of an action."""
    match action:
        case Action.ALLOW:
            return RET_ALLOW
        case Action.KILL:
            return RET_KILL_PROCESS
        case Action.EPERM | Action.ENOSYS | Action.EPROTONOSUPPORT:
            return RET_ERRNO | action.errno


def assemble(
    *, audit_arch: int, rules: Mapping[int, Rule], unknown: int, foreign: int, returns: Mapping[Action, int]
) -> bytes:
    """Build the program.

    `rules` maps numbers to rules, `unknown` is the return word for every other number (x32 numbers and -1 included),
    `foreign` the one for another architecture's entry point, `returns` the words of the actions.
    """
    head = (
        Instruction(LOAD_WORD, OFFSET_ARCH),
        Instruction(JUMP_EQUAL, audit_arch, jt=1),
        Instruction(RETURN, foreign),
        Instruction(LOAD_WORD, OFFSET_NUMBER),
    )
    code = head + _tree(_ranges(rules, unknown, returns))
    if len(code) > MAX_INSTRUCTIONS:
        raise ValueError(f"the program has {len(code)} instructions, the kernel takes {MAX_INSTRUCTIONS}")
    return b"".join(instruction.encode() for instruction in code)


def _ranges(rules: Mapping[int, Rule], unknown: int, returns: Mapping[Action, int]) -> list[tuple[int, Code]]:
    """First numbers of runs that share their code, ascending; the first run starts at 0."""
    ranges: list[tuple[int, Code]] = []
    for number in range(max(rules) + 2):
        rule = rules.get(number)
        code = (Instruction(RETURN, unknown),) if rule is None else _rule(rule, returns)
        if not ranges or ranges[-1][1] != code:
            ranges.append((number, code))
    return ranges


def _tree(ranges: Sequence[tuple[int, Code]]) -> Code:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    low, high = _tree(ranges[:middle]), _tree(ranges[middle:])
    first = ranges[middle][0]
    if len(low) <= FAR:
        return (Instruction(JUMP_AT_LEAST, first, jt=len(low)), *low, *high)
    return (Instruction(JUMP_AT_LEAST, first, jf=1), Instruction(JUMP, len(low)), *low, *high)


def _rule(rule: Rule, returns: Mapping[Action, int]) -> Code:
    code: Code = (Instruction(RETURN, returns[rule.otherwise]),)
    for case in reversed(rule.cases):
        # Each case is self-contained: a condition that fails jumps to the code after the case's return.
        body: Code = (Instruction(RETURN, returns[case.then]),)
        for condition in reversed(case.when):
            body = _condition(condition, len(body)) + body
        code = body + code
    return code


def _condition(condition: Condition, skip: int) -> Code:
    """Code that goes on when the condition holds, and jumps over `skip` more instructions when not."""
    if skip + 6 > FAR:
        raise ValueError(f"too many conditions in one case: {condition}")
    match condition.test:
        case Test.EQUAL:
            return _equal(condition, skip)
        case Test.ANY_BIT:
            return _any_bit(condition, skip)


def _words(condition: Condition) -> list[tuple[int, int, int]]:
    """(offset, mask, value) of each 32-bit word that counts, high word first."""
    low = OFFSET_ARGUMENTS + 8 * condition.argument
    words = [(low, condition.mask & WORD, condition.value & WORD)]
    if condition.width is Width.LONG:
        words.insert(0, (low + 4, condition.mask >> 32 & WORD, condition.value >> 32))
    return words


def _equal(condition: Condition, skip: int) -> Code:
    code: Code = ()
    for offset, mask, value in reversed(_words(condition)):
        test = (Instruction(JUMP_EQUAL, value, jf=skip + len(code)),)
        masked = (Instruction(MASK, mask),) if mask != WORD else ()
        code = (Instruction(LOAD_WORD, offset), *masked, *test, *code)
    return code


def _any_bit(condition: Condition, skip: int) -> Code:
    code: Code = ()
    for offset, _, value in reversed([word for word in _words(condition) if word[2]]):
        # The last word decides; an earlier one that matches jumps over what is left of the condition.
        jump = Instruction(JUMP_ANY_BIT, value, jt=len(code)) if code else Instruction(JUMP_ANY_BIT, value, jf=skip)
        code = (Instruction(LOAD_WORD, offset), jump, *code)
    return code
