"""A classic BPF interpreter over `struct seccomp_data`, so that a filter for any architecture runs as a unit test.

It also tells which instructions ran, because the kernel's constant-answer bitmap accepts only some of them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Outcome:
    """The return word, the number of instructions that ran and whether any of them looked at an argument."""

    word: int
    steps: int
    saw_arguments: bool


def run(program: bytes, *, arch: int, number: int, arguments: Sequence[int] = ()) -> Outcome:
    """Run a filter once. `arguments` are padded with zeros to six 64-bit values."""
    values = [value & (1 << 64) - 1 for value in [*arguments, *[0] * 6][:6]]
    data = struct.pack("<IIQ6Q", number & WORD, arch, 0, *values)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator = pc = steps = 0
    saw = False
    while True:
        operation, jt, jf, k = code[pc]
        pc += 1
        steps += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, k)[0]
                saw = saw or k >= 8
            case 0x54:
                accumulator &= k
            case 0x05:
                pc += k
            case 0x15:
                pc += jt if accumulator == k else jf
            case 0x35:
                pc += jt if accumulator >= k else jf
            case 0x45:
                pc += jt if accumulator & k else jf
            case 0x06:
                return Outcome(k, steps, saw)
            case _:
                raise AssertionError(f"the kernel refuses opcode {operation:#x}")
