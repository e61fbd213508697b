"""What tmux is told: no word of it comes from a name, and a pane is its id."""

import pytest

from sandbox import tmux


def test_every_client_names_its_socket_and_starts_no_server() -> None:
    commands = [
        tmux.setup(80, 24, "/x"),
        tmux.load_text("b"),
        tmux.paste("b"),
        tmux.press(("C-c",)),
        tmux.capture(scrollback=True, join=True),
        tmux.ask_state(),
        tmux.resize(10, 10),
        tmux.pipe_to("/run/x"),
        tmux.stop_pipe(),
        tmux.replace_shell("/x"),
        tmux.attach(),
    ]
    for command in commands:
        assert command[: len(tmux.CLIENT)] == tmux.CLIENT
        targets = [command[index + 1] for index, word in enumerate(command) if word == "-t"]
        assert set(targets) <= {tmux.PANE, f"={tmux.SESSION}"}, "a bare name would match whatever it is a prefix of"


def test_keys_cannot_become_options() -> None:
    command = tmux.press(("Enter",))
    assert command[-2:] == ("--", "Enter")


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d e f g", "1 2 3 4 5 6 -7", "1 2 3 4 5 6 7 8"])
def test_a_strange_answer_is_no_state(text: str) -> None:
    assert tmux.parse_state(text) is None


def test_state() -> None:
    state = tmux.parse_state("12 80 24 3 4 100000 1\n")
    assert state is not None
    assert (state.pid, state.columns, state.history, state.attached) == (12, 80, 100_000, 1)
