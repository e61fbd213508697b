"""Whether a refusal is owed as a document, and what a sentence may do to a terminal."""

import errno
import os
from collections.abc import Callable

import pytest

from netns.kernel import explain_namespaces
from wicketgate.guard import guarded, wants_document
from wicketgate.speech import print_document, say


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run --json -- true", True),
        ("run --json", True),
        ("run --nosuch --json -- true", True),
        ("run --allow a.example --json -- true", True),
        ("run --timeout 5 --json", True),
        ("run -- tool --json", False),
        ("run tool --json", False),
        ("run --allow --json -- tool", False),  # the value of --allow
        ("run --allow a.example tool --json", False),
        ("run --allow=a.example --json", True),
        ("run", False),
        ("", False),
        ("policy check --json file", True),
        ("policy check file", False),
    ],
)
def test_a_document_is_owed_when_it_was_asked_of_us(line: str, expected: bool) -> None:
    assert wants_document(line.split()) is expected


@pytest.fixture
def told() -> Callable[[int, Callable[[], object]], bytes]:
    """What a call writes to a descriptor, through a pipe: the real thing is a descriptor, too."""

    def capture(number: int, call: Callable[[], object]) -> bytes:
        kept = os.dup(number)
        reader, writer = os.pipe()
        os.dup2(writer, number)
        try:
            call()
        finally:
            os.dup2(kept, number)
            os.close(kept)
            os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read()

    return capture


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", b"plain"),
        ("two\nlines", b"two\nlines"),
        ("\x1b[31mred\x07", rb"\x1b[31mred\x07"),
        ("back\rover", rb"back\rover"),
        ("“quoted” é", "“quoted” é".encode()),
        ("bidi \u202e evil", rb"bidi \u202e evil"),
        ("bytes \udcff", rb"bytes \udcff"),
    ],
)
def test_what_is_said_cannot_move_the_cursor(
    text: str, expected: bytes, told: Callable[[int, Callable[[], object]], bytes]
) -> None:
    assert told(2, lambda: say(text)) == b"wicketgate: " + expected + b"\n"


def test_a_document_is_one_line_of_ascii(told: Callable[[int, Callable[[], object]], bytes]) -> None:
    assert told(1, lambda: print_document({"a": "é\n\x1b"})) == b'{"a": "\\u00e9\\n\\u001b"}\n'


@pytest.mark.parametrize(("code", "said"), [(28, "limit"), (87, "limit"), (1, "not permitted"), (13, "denied")])
def test_a_refused_namespace_is_explained(code: int, said: str) -> None:
    assert said in explain_namespaces(OSError(code, os.strerror(code)))


@pytest.mark.parametrize(("code", "ours"), [(errno.ENOSPC, False), (errno.EMFILE, False), (errno.EINVAL, True)])
def test_what_the_system_has_no_more_of_is_no_error_of_ours(
    told: Callable[[int, Callable[[], object]], bytes], code: int, ours: bool
) -> None:
    def fail() -> int:
        raise OSError(code, os.strerror(code))

    said = told(2, lambda: guarded([], fail)).decode()
    assert ("error of Wicketgate itself" in said) is ours
    assert os.strerror(code) in said
