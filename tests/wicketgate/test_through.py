"""`wicketgate run --runner`: what is typed, and an answer that comes in any pieces or not to its end."""

import json
import socket
import threading
from pathlib import Path

import pytest

from wicketgate.through import REFUSED, read, run_through

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
        code = run_through(runner=str(place / "s"), command=["true"], workspace=workspace)
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
    ("words", "found"),
    [
        ("run --runner /s true", {"runner": "/s", "command": ["true"]}),
        ("run --runner=/s --timeout 2 -- a --b", {"runner": "/s", "timeout": 2.0, "command": ["a", "--b"]}),
        (
            "run --workspace w --grant g --runner /s x",
            {"runner": "/s", "workspace": "w", "grant": "g", "command": ["x"]},
        ),
        ("run -- prog --runner /s", None),
        ("run --runner /s", None),
        ("run --runner /s --", None),
        ("run --runner= x", None),
        ("run --runner /s --allow h x", None),
        ("run --runner /s --json x", None),
        ("run --runner /s --runner /t x", None),
        ("run --runner /s --timeout 0 x", None),
        ("run --runner /s --timeout nan x", None),
        ("run --runner /s --timeout soon x", None),
        ("job --runner /s x", None),
    ],
)
def test_what_is_typed_in_the_usual_form(words: str, found: dict[str, object] | None) -> None:
    assert read(words.split()) == found
