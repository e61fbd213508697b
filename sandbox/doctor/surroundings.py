"""What a sandbox needs beside the kernel: a broker, a clock, room for the log, control groups, programs."""

import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.control.messages import Greeting, Rejected, decode_from_broker
from netns import handoff
from sandbox.cgroups import Support, Version
from sandbox.doctor.causes import Cause, Layer
from sandbox.doctor.findings import BRIDGE_ONLY, Finding, State, failed, fine

# Nothing of this version ran before; certificates made under an earlier clock would not be valid for anybody.
RELEASED: Final = 1_767_225_600  # 2026-01-01T00:00:00Z
LEAST_BYTES: Final = 64 << 20
_SO_PEERCRED = struct.Struct("=iII")


def check_broker(attach: Path | None) -> Finding:
    if attach is None:
        return fine("broker", "No broker is named: each `wicketgate run` brings its own.")
    trouble = _try_broker(attach)
    if trouble is None:
        return fine("broker", f"The broker at {attach} answers.")
    sentence, cure = trouble
    return failed("broker", Cause(layer=Layer.BROKER, sentence=sentence, cure=cure), BRIDGE_ONLY)


def _try_broker(attach: Path) -> tuple[str, str] | None:
    start = "Start `wicketgate broker` with a `runtime` that this process sees as the same directory."
    closed = "Let the directory of the socket be entered by the runner's group, and name the runner in [attach]."
    try:
        status = attach.lstat()
    except PermissionError:
        return f"User {os.geteuid()} may not look into {attach.parent}, where the broker's socket is to be.", closed
    except OSError as error:
        return f"There is no broker's socket at {attach} ({error.strerror}).", start
    if not stat.S_ISSOCK(status.st_mode):
        return f"{attach} is no socket.", start
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(attach))
            owner = _owner(connection)
            if owner != status.st_uid:  # nothing that it says counts
                return f"{attach} belongs to user {status.st_uid}, but user {owner} answers at it.", (
                    "Let nobody but the broker write the socket's directory, and start the broker anew."
                )
            greeting, _ = handoff.receive(connection)
        except PermissionError:
            return f"User {os.geteuid()} may not connect to {attach}, which belongs to user {status.st_uid}.", closed
        except (OSError, handoff.HandoffError) as error:
            return f"Nobody answers at {attach} ({getattr(error, 'strerror', None) or error}).", start
    return _judge_greeting(greeting, attach)


def _owner(connection: socket.socket) -> int:
    """The user who listens at the other end (unix(7))."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED.size)
    return int(_SO_PEERCRED.unpack(told)[1])


def _judge_greeting(greeting: bytes, attach: Path) -> tuple[str, str] | None:
    try:
        answer = decode_from_broker(greeting)
    except ValueError:
        return f"What answers at {attach} is no broker.", "Name the broker's attach socket."
    match answer:
        case Greeting():
            return None
        case Rejected(detail=detail):
            return f"The broker at {attach} refuses: {detail}.", "Name this user in [attach] of its configuration."
        case _:
            return f"What answers at {attach} is another version's broker.", "Run broker and runner from one version."


def check_clock(now: float) -> Finding:
    if now >= RELEASED:
        return fine("clock", "The clock can be right.")
    told = time.strftime("%Y-%m-%d", time.gmtime(now))
    cause = Cause(
        layer=Layer.CLOCK,
        sentence=f"The clock says {told}, which is before this version was made: no certificate would be valid.",
        cure="Set the clock, or start what does (systemd-timesyncd, chrony) before Wicketgate.",
    )
    return failed("clock", cause, BRIDGE_ONLY)


def check_disk(state: Path | None) -> Finding:
    if state is None:
        cause = Cause(
            layer=Layer.DISK,
            sentence="Neither XDG_STATE_HOME nor HOME names a state directory, and without a log nothing is allowed.",
            cure="Set XDG_STATE_HOME to a directory that this user can write.",
        )
        return failed("disk", cause, BRIDGE_ONLY)
    place = next(path for path in (state, *state.parents) if path.exists())
    free = os.statvfs(place)
    if not os.access(place, os.W_OK | os.X_OK):
        sentence = f"User {os.geteuid()} cannot write the state directory {place}; without a log nothing is allowed."
        cure = "Give it to this user (chown), or name another in XDG_STATE_HOME."
    elif free.f_bavail * free.f_frsize < LEAST_BYTES:
        sentence = f"Less than {LEAST_BYTES >> 20} MiB are free below {place}: a full disk stops log and egress."
        cure = "Free some, or name another directory in XDG_STATE_HOME."
    else:
        return fine("disk", f"There is room for the log in {state}.")
    return failed("disk", Cause(layer=Layer.DISK, sentence=sentence, cure=cure), BRIDGE_ONLY)


def check_groups(support: Support) -> Finding:
    missing = {name: support.missing[name] for name in ("memory", "pids") if name in support.missing}
    if support.version is not Version.NONE and not missing:
        sentence = f"Control groups ({support.version.value}) bound memory and tasks of each session of a runner."
        return fine("cgroups", sentence)
    reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
    return Finding(
        check="cgroups",
        state=State.WARNING,
        layer=Layer.CGROUP,
        sentence=f"Sessions are bounded by resource limits only, process by process ({reasons}).",
        cure="Under systemd run it in a unit with Delegate=yes; give a container memory and pids limits of its own.",
    )


def check_programs(names: tuple[str, ...]) -> Iterator[Finding]:
    for name in names:
        if any(Path(place, name).exists() for place in ("/usr/bin", "/bin", "/usr/local/bin")):
            continue
        yield Finding(
            check=name,
            state=State.WARNING,
            layer=Layer.PROGRAM,
            sentence=f"The program {name} is missing: terminals that outlive a call cannot be opened.",
            cure=f"Install the distribution's package {name}.",
        )
