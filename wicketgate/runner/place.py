"""What a runner has in its runtime directory: its lock, and its socket."""

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Final

from wicketgate.runner.config import SOCKET_NAME, ConfigError
from wicketgate.runner.gate import Admitted

BACKLOG: Final = 512
LOCK_NAME: Final = "runner.lock"
LOCK_SECONDS: Final = 0.5


def take_lock(runtime: Path) -> int:
    """Hold the runtime directory against a second runner; a socket that is found under it is a dead runner's.

    Raises ConfigError.
    """
    path = runtime / LOCK_NAME
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _lock(lock)
    except BlockingIOError as error:
        cure = "Stop it, or give this one another directory: runtime in [runner] of its configuration."
        raise ConfigError(f"Another runner serves in {runtime}. {cure}") from error
    except OSError as error:
        raise ConfigError(f"The lock {path} cannot be opened: {error.strerror}.") from error
    return lock


def listen(path: Path, admitted: Admitted) -> socket.socket:
    """Open the socket. Where others than root and the serving user are let in, anybody may knock: the gate decides.

    Raises ConfigError.
    """
    closed = not admitted.gids and admitted.uids <= {0, os.geteuid()}
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # never open wider than meant, not even for a moment
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600 if closed else 0o666)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"The socket {path} cannot be made: {error.strerror or error}.") from error
    finally:
        os.umask(before)
    return listener


def forget_socket(runtime: Path) -> None:
    """Remove the socket of a gate that was killed, unless another runner is there already and has taken its place."""
    with contextlib.suppress(ConfigError, OSError):
        lock = take_lock(runtime)
        (runtime / SOCKET_NAME).unlink(missing_ok=True)
        os.close(lock)


def _lock(lock: int) -> None:
    """Take the lock. Raises BlockingIOError. The keeper of a killed runner has it for a moment, which is waited for."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
