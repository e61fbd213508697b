"""What bubblewrap said, in the sentence of a refusal."""

import os

import pytest

from sandbox.errors import Code, LaunchError
from sandbox.last_words import with_last_words


def told(said: bytes, code: Code = Code.SANDBOX_FAILED) -> str:
    reader, writer = os.pipe()
    try:
        os.write(writer, said)
        return with_last_words(LaunchError(code, "It failed.", "Try."), reader).cause
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (b"", "It failed."),
        (b"\n \n", "It failed."),
        (
            b"bwrap: Can't mount proc: Operation not permitted\n",
            "It failed: bwrap: Can't mount proc: Operation not permitted.",
        ),
        (b"bwrap: one.\nbwrap: two\n", "It failed: bwrap: one; bwrap: two."),
        (b"a\x1b]0;title\x07\x00\xff\xe2\x80\xae", "It failed: a\\x1b]0;title\\x07\\x00\\xff\\u202e."),
        (b"x" * 5000, f"It failed: …{'x' * 300}."),
    ],
)
def test_it_is_one_plain_bounded_sentence(said: bytes, cause: str) -> None:
    assert told(said) == cause


def test_another_refusal_is_left_as_it_is() -> None:
    assert told(b"words", Code.BAD_WORKSPACE) == "It failed."
