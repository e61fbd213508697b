"""tmux as words: the commands that a terminal needs, and what they answer. Pure.

Each terminal has a server of its own in a sandbox of its own, on a socket in the sandbox's private /run. The pane is
always named by its id (`%0`): a name could hold `.` and `:`, which tmux reads as parts of a target, and would match
whatever it is a prefix of. Names for people stay with the runner. The shell begins where its client does: tmux would
expand a directory's name as a format (`#{...}`, `#(...)`).

A payload may put a server of its own in the place of this one, so an answer may be anything.
"""

import re
from dataclasses import dataclass

SOCKET = "/run/tmux.sock"
PANE = "%0"
SESSION = "main"
HISTORY = 100_000  # lines
SERVER = ("/usr/bin/tmux", "-D", "-u", "-S", SOCKET, "-f", "/dev/null")
# -N: a client never starts a server of its own, which would be one without our settings.
CLIENT = ("/usr/bin/tmux", "-N", "-u", "-S", SOCKET)
TERM = "tmux-256color"
_ACCEPTS = 0x10000  # a socket's flag: listen(2) was called
# No key of any keyboard. tmux reads it behind all that was typed before, so that nothing of that is lost.
LEAVE_KEY = b"\x1b[7777;7777~"
# Set before the first pane is made. The server is private, but its defaults read the environment of whoever attaches.
_SETTINGS = (
    ("set-option", "-g", "history-limit", str(HISTORY)),
    ("set-option", "-g", "default-shell", "/bin/bash"),
    ("set-option", "-g", "default-command", "exec /bin/bash"),  # without it, a login shell
    ("set-option", "-g", "default-terminal", TERM),
    ("set-option", "-g", "update-environment", ""),
    ("set-option", "-g", "status", "off"),
    ("set-option", "-g", "allow-rename", "off"),
    ("set-option", "-g", "set-clipboard", "off"),
    ("set-option", "-s", "escape-time", "0"),
    ("set-option", "-s", "user-keys[0]", LEAVE_KEY.decode()),
    ("bind-key", "-n", "User0", "detach-client"),
)
# `tmux -D` keeps an empty server; with this the end of the shell is the end of the sandbox.
_END_WHEN_EMPTY = ("set-option", "-s", "exit-empty", "on")
# Somebody may have scrolled and gone: keys would be that mode's, and never come to the program.
_LEAVE_MODE = ("copy-mode", "-q", "-t", PANE)
_NUMBER = re.compile(r"[0-9]{1,9}")
# What moves a cursor or begins a sequence (ECMA-48, C0 and C1) is no part of a line.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
STATE = "#{pane_pid} #{window_width} #{window_height} #{cursor_x} #{cursor_y} #{history_size} #{session_attached}"
_ASK_STATE = ("display-message", "-p", "-t", PANE, STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneState:
    """What tmux says of the pane. `pid` is the shell's number inside the sandbox."""

    pid: int
    columns: int
    rows: int
    cursor_column: int
    cursor_row: int
    history: int
    attached: int


def setup(columns: int, rows: int) -> tuple[str, ...]:
    """Settings, and the one session with the one pane; prints the pane's state."""
    session = ("new-session", "-d", "-s", SESSION, "-x", str(columns), "-y", str(rows))
    return (*CLIENT, *_joined(*_SETTINGS, session, _END_WHEN_EMPTY, _ASK_STATE))


def is_client(argv: tuple[str, ...]) -> bool:
    """Whether these words are a client's: it hands its streams over to the server (unix(7), SCM_RIGHTS)."""
    return argv[: len(CLIENT)] == CLIENT


def is_listening(sockets: str) -> bool:
    """Whether a server takes connections, by the sandbox's table of unix sockets (proc_net(5)).

    The name is there a moment before: a client of that moment is refused.
    """
    return any(
        len(words) == 8 and words[7] == SOCKET and int(words[3], 16) & _ACCEPTS
        for words in map(str.split, sockets.splitlines()[1:])
    )


def _joined(*commands: tuple[str, ...]) -> tuple[str, ...]:
    words: list[str] = []
    for command in commands:
        words += [";", *command] if words else command
    return tuple(words)


def load_text(buffer: str) -> tuple[str, ...]:
    """Take a text from standard input; it is no argument, where a `;` at its end would part commands."""
    return (*CLIENT, "load-buffer", "-b", buffer, "-")


def paste(buffer: str) -> tuple[str, ...]:
    """Paste a loaded text, in brackets where the program has asked for them, and forget it."""
    return (*CLIENT, "paste-buffer", "-p", "-d", "-b", buffer, "-t", PANE)


def press(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Press keys by their names."""
    return (*CLIENT, *_LEAVE_MODE, ";", "send-keys", "-t", PANE, "--", *keys)


def type_text(text: str) -> tuple[str, ...]:
    """Type a text letter by letter. It must not end with a `;`."""
    return (*CLIENT, *_LEAVE_MODE, ";", "send-keys", "-l", "-t", PANE, "--", text)


def capture(*, scrollback: bool, join: bool) -> tuple[str, ...]:
    """Print the screen, or everything that is kept."""
    lines = ("-S", "-", "-E", "-") if scrollback else ()
    return (*CLIENT, "capture-pane", "-p", *(("-J",) if join else ()), *lines, "-t", PANE)


def ask_state() -> tuple[str, ...]:
    """Print the pane's state."""
    return (*CLIENT, *_ASK_STATE)


def parse_state(text: str) -> PaneState | None:
    """The answer to `ask_state` and `setup`; None where there is no such pane."""
    words = text.split()
    if len(words) != 7 or not all(_NUMBER.fullmatch(word) for word in words):
        return None
    pid, columns, rows, cursor_column, cursor_row, history, attached = map(int, words)
    return PaneState(
        pid=pid,
        columns=columns,
        rows=rows,
        cursor_column=cursor_column,
        cursor_row=cursor_row,
        history=history,
        attached=attached,
    )


def parse_lines(shown: str) -> list[str]:
    """The answer to `capture`, and any other text that is shown: lines without control characters but tabs."""
    lines = shown.split("\n")
    return [_CONTROLS.sub("", line) for line in (lines if lines[-1] else lines[:-1])]


def resize(columns: int, rows: int) -> tuple[str, ...]:
    """Give the window a size, whoever is attached."""
    return (*CLIENT, "resize-window", "-t", PANE, "-x", str(columns), "-y", str(rows))


def pipe_to(path: str) -> tuple[str, ...]:
    """Have everything that the pane shows from now on written to a FIFO inside as well."""
    return (*CLIENT, "pipe-pane", "-O", "-t", PANE, f"exec /usr/bin/cat >{path}")


def stop_pipe() -> tuple[str, ...]:
    """Write it no more."""
    return (*CLIENT, "pipe-pane", "-t", PANE)


def replace_shell() -> tuple[str, ...]:
    """Kill what runs in the pane and start a new shell in it, where the first one began."""
    return (*CLIENT, "respawn-pane", "-k", "-t", PANE)


def attach() -> tuple[str, ...]:
    """A client on the terminal that it is started on; the window takes its size while it is the last one used."""
    latest = ("set-option", "-w", "-t", PANE, "window-size", "latest")  # until it is resized by hand again
    return (*CLIENT, *latest, ";", "attach-session", "-t", f"={SESSION}")
