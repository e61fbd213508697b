"""`Sandbox`: commands in sandboxes of their own, from Python, without a daemon.

    sandbox = Sandbox(workspace="/srv/project", allow=["api.example.com"])
    done = await sandbox.run("make", "test", timeout=600)

Each command is one `wicketgate run`: a process of ours, because a server with threads cannot enter namespaces itself. A
server that starts many uses `Runner`.
"""

import asyncio
import contextlib
import errno
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

GRACE: Final = 2.0  # seconds in which a cancelled run ends by itself


class SandboxError(Exception):
    """Nothing was executed, or what was executed was ended by a fault of ours. `code` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """What the network was used for: requests and connections by verdict, and the directory of the log."""

    allowed: int
    denied: int
    failures: int
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A command that has ended. `code`: its own, 128+n for signal n, 124 where its time was up.

    `stdout` and `stderr` are text (UTF-8, what is not becomes U+FFFD); of each the first bytes are kept, and
    `dropped_bytes` were not. `egress` is None for a sandbox without a network.
    """

    session: str
    code: int
    stdout: str
    stderr: str
    timed_out: bool
    dropped_bytes: int
    egress: Egress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What the commands of a sandbox may do, as the options of `wicketgate run`. Never fill it from a model's words.

    `allow`: hosts, each with a port or without; `policy`: a policy file; `grant`: one of the running broker whose
    attach socket is `socket`. Without any of them there is no network.
    """

    workspace: str | Path | None = None
    allow: Sequence[str] = ()
    policy: str | Path | None = None
    grant: str | None = None
    socket: str | Path | None = None
    resolve: Sequence[str] = ()
    cacert: Sequence[str | Path] = ()
    private: Sequence[str] = ()

    async def run(self, *command: str, timeout: float | None = None, stdin: bytes = b"") -> Result:  # noqa: ASYNC109  the run's own
        """Run a command to its end; after `timeout` seconds everything in its sandbox is ended.

        Cancelled, it ends the command. Raises SandboxError.
        """
        words = [sys.executable, "-m", "wicketgate", "run", "--json", *self._options()]
        words += [] if timeout is None else [f"--timeout={timeout!r}"]
        try:
            run = await asyncio.create_subprocess_exec(
                *words, "--", *command, stdin=PIPE if stdin else DEVNULL, stdout=PIPE, stderr=DEVNULL
            )
        except ValueError as error:  # a zero byte, or no valid Unicode
            raise SandboxError("bad_call", f"The command cannot be executed: {error}.") from error
        except OSError as error:
            code = "bad_call" if error.errno == errno.E2BIG else "sandbox_failed"
            raise SandboxError(code, f"The command cannot be started: {error.strerror}.") from error
        try:
            told, _ = await run.communicate(stdin or None)
        finally:
            await _end(run)
        return _result(told, run.returncode)

    def _options(self) -> Iterator[str]:
        for name in ("workspace", "policy", "grant", "socket"):
            value = getattr(self, name)
            if value is not None:
                yield f"--{name}={value}"
        for name in ("allow", "resolve", "cacert", "private"):
            values: Sequence[str | Path] = getattr(self, name)
            if isinstance(values, str):
                raise TypeError(f"{name} takes a list, not a string")
            yield from (f"--{name}={value}" for value in values)


async def _end(run: Process) -> None:
    """End a run that nobody waits for any more: politely, so that it cleans up itself, and then for certain."""
    if run.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        run.terminate()
        try:
            await asyncio.wait_for(run.wait(), GRACE)
        except TimeoutError:
            run.kill()
            await run.wait()


def _result(told: bytes, code: int | None) -> Result:
    try:
        document: dict[str, Any] = json.loads(told)
    except ValueError:
        raise SandboxError("sandbox_lost", f"The run ended with {code} and told nothing.") from None
    error = document.get("error")
    if error is not None and not document.get("timed_out"):
        raise SandboxError(error["code"], error["message"])
    network = document.get("network")
    egress = None if network is None else Egress(**{**network, "log": Path(network["log"])})
    out, err = document["stdout"], document["stderr"]
    return Result(
        session=document["session"],
        code=document["exit_code"],
        stdout=out["text"],
        stderr=err["text"],
        timed_out=document["timed_out"],
        dropped_bytes=out["dropped_bytes"] + err["dropped_bytes"],
        egress=egress,
    )
