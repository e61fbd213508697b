"""`wicketgate run --runner`: what is typed, and an answer that comes in any pieces or not to its end."""

import json
import socket
import threading
from pathlib import Path

import pytest

from wicketgate.through import REFUSED, run_through, suits
from wicketgate.typed import read

HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
EVENTS = (
    {"type": "started", "id": "s-1"},
    {"type": "output", "stream": "stdout", "text": "out ü\n"},
    {"type": "output", "stream": "stderr", "base64": "/w=="},
    {"type": "ended", "code": 7, "timed_out": False, "dropped_bytes": 0, "set_aside": [], "session_ended": False},
)
ANSWER = HEAD + b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
PROBLEM = {"type": "about:blank", "title": "No.", "detail": "Why.", "code": "command_not_found", "status": 400}
REFUSAL = b"HTTP/1.0 400 Bad Request\r\n\r\n" + json.dumps(PROBLEM).encode()


def answered(place: Path, pieces: list[bytes], workspace: str | None = None) -> int:
    """What becomes of a run whose runner sends these pieces and closes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while b'"authority"' not in connection.recv(1 << 16):
                    pass
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        code = run_through(runner=str(place / "s"), command=("true",), workspace=workspace)
        thread.join()
    return code


@pytest.mark.parametrize("size", [1, 7, 60, len(ANSWER)])
def test_an_answer_in_any_pieces(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], size: int) -> None:
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    assert answered(tmp_path, pieces) == 7
    assert capfdbinary.readouterr() == ("out ü\n".encode(), b"\xff")


@pytest.mark.parametrize("length", [0, 10, len(HEAD), len(HEAD) + 5, len(ANSWER) - 30, len(ANSWER) - 200])
def test_an_answer_that_does_not_come_to_its_end(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], length: int
) -> None:
    assert answered(tmp_path, [ANSWER[:length]]) == REFUSED
    assert capfdbinary.readouterr().err.count(b"wicketgate: ") == 1


def test_a_refusal(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert answered(tmp_path, [REFUSAL]) == 127
    assert capfdbinary.readouterr().err == b"wicketgate: No. Why.\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --runner /s true", True),
        ("run --runner=/s --timeout 2 -- a --b", True),
        ("run --workspace w --grant g --runner /s x", True),
        ("run -- prog --runner /s", False),
        ("run --runner /s --allow h x", False),
        ("run --runner /s --json x", False),
        ("run --runner /s --timeout 0 x", False),
        ("run --runner /s --timeout nan x", False),
    ],
)
def test_what_a_runner_is_asked_without_a_further_look(words: str, expected: bool) -> None:
    typed = read(words.split())
    assert typed is not None
    assert suits(typed) is expected
