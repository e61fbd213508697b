"""What tmux is told: no word of it comes from a name, and a pane is its id."""

import pytest

from sandbox import tmux


def test_every_client_names_its_socket_and_starts_no_server() -> None:
    commands = [
        tmux.setup(80, 24),
        tmux.load_text("b"),
        tmux.paste("b"),
        tmux.press(("C-c",)),
        tmux.type_text("x"),
        tmux.capture(scrollback=True, join=True),
        tmux.ask_state(),
        tmux.resize(10, 10),
        tmux.pipe_to("/run/x"),
        tmux.stop_pipe(),
        tmux.replace_shell(),
        tmux.attach(),
    ]
    for command in commands:
        assert command[: len(tmux.CLIENT)] == tmux.CLIENT
        targets = [command[index + 1] for index, word in enumerate(command) if word == "-t"]
        assert set(targets) <= {tmux.PANE, f"={tmux.SESSION}"}, "a bare name would match whatever it is a prefix of"


def test_keys_cannot_become_options() -> None:
    command = tmux.press(("Enter",))
    assert command[-2:] == ("--", "Enter")


def test_no_word_is_expanded_as_a_format() -> None:
    """A directory's name could be one: `#(command)`, `#{session_name}`."""
    for command in (tmux.setup(80, 24), tmux.replace_shell()):
        assert not any("#" in word for word in command if word != tmux.STATE)


@pytest.mark.parametrize(
    ("row", "listens"),
    [
        (f"0: 00000002 00000000 00010000 0001 01 7 {tmux.SOCKET}", True),
        (f"0: 00000002 00000000 00000000 0001 01 7 {tmux.SOCKET}", False),  # bound, and no more yet
        (f"0: 00000003 00000000 00000000 0001 03 7 {tmux.SOCKET}", False),  # an accepted connection has its name, too
        (f"0: 00000002 00000000 00010000 0001 01 7 {tmux.SOCKET}.lock", False),
        (f"0: 00000002 00000000 00010000 0001 01 7 @{tmux.SOCKET}", False),
        ("0: 00000002 00000000 00010000 0001 01 7", False),  # one without a name
        ("", False),
    ],
)
def test_a_server_listens_when_the_kernel_says_so(row: str, *, listens: bool) -> None:
    table = f"Num       RefCount Protocol Flags    Type St Inode Path\n{row}\n"
    assert tmux.is_listening(table) is listens


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 2 3", "a b c d e f g", "1 2 3 4 5 6 -7", "1 2 3 4 5 6 7 8"),
        *("1 2 3 4 5 6 \u00b2", "\u0661 2 3 4 5 6 7", f"1 2 3 4 5 6 {10**9}", f"{'9' * 5000} 2 3 4 5 6 7"),
    ],
)
def test_a_strange_answer_is_no_state(text: str) -> None:
    assert tmux.parse_state(text) is None


def test_state() -> None:
    state = tmux.parse_state("12 80 24 3 4 100000 1\n")
    assert state is not None
    assert (state.pid, state.columns, state.history, state.attached) == (12, 80, 100_000, 1)


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        ("", []),
        ("a\nb\n", ["a", "b"]),
        ("a\n\n", ["a", ""]),
        ("no end", ["no end"]),
        ("\x1b]0;title\x07\x1b[2Jx\rover\x08\n", ["]0;title[2Jxover"]),
        ("\x9b2J\x9d0;x\x9c\x7f\x00\n", ["2J0;x"]),
        ("a\tb ü 🚪\n", ["a\tb ü 🚪"]),
    ],
)
def test_no_line_holds_what_a_terminal_obeys(shown: str, lines: list[str]) -> None:
    assert tmux.parse_lines(shown) == lines
