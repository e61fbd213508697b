"""Build a whole sandbox, by the one construction path, and have it prove itself from within."""

import contextlib
import json
import os
import select
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from netns import kernel
from netns.bridge import Bridge, build_bridge
from sandbox.construct import build
from sandbox.doctor.causes import Cause, Layer
from sandbox.doctor.children import hear_child
from sandbox.doctor.findings import BRIDGE_ONLY, EVERY_MODE, Finding, Mode, State, failed, fine
from sandbox.errors import LaunchError
from sandbox.ground import Ground
from sandbox.host import Host
from sandbox.seccomp import no_sockets  # noqa: F401  loaded before a change of user may make it unreadable
from sandbox.spec import Authority, Call, Network, SandboxSpec
from sandbox.spec import Mode as Access
from sandbox.supervise import block_signals, supervise

INSIDE: Final = Path(__file__).with_name("inside.py")
PYTHON: Final = "/usr/bin/python3"
FULL_ACCESS: Final = "full-access"
# Full access shows files: no socket of the host, no process, no network, no right.
FILES_ONLY: Final = """
import json, os, socket
checks = []
def note(check, ok, detail):
    checks.append({"check": check, "ok": ok, "detail": detail})
try:
    socket.socket(socket.AF_UNIX).close()
    note("unix sockets", False, "one can be made")
except OSError as error:
    note("unix sockets", True, str(error))
names = sorted(name for _, name in socket.if_nameindex())
note("addresses", names == ["lo"], "interfaces: " + ", ".join(names))
pids = [name for name in os.listdir("/proc") if name.isdigit()]
note("processes", len(pids) < 8, f"{len(pids)} processes")
rows = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
rights = (rows["CapEff"], rows["CapBnd"], rows["NoNewPrivs"], rows["Seccomp"])
note("rights", os.getuid() != 0 and rights == ("0" * 16, "0" * 16, "1", "2"), " ".join(rights))
shown = sorted(os.listdir("/"))
note("files", {"bin", "boot", "home", "srv", "var"} & set(shown) >= {"home", "var"}, " ".join(shown))
print(json.dumps({"checks": checks}))
"""
PATIENCE: Final = 30.0  # seconds for a whole sandbox


def inside_program(*words: str) -> tuple[str, ...]:
    """The command that proves the isolation from within a sandbox."""
    return (PYTHON, "-I", "-S", "-c", INSIDE.read_text(encoding="utf-8"), *words)


def try_whole(host: Host, network: Network) -> Finding:
    """Build a real sandbox and let it prove itself from within."""
    mode = Mode.BRIDGE if network is Network.BROKERED else Mode.SANDBOX
    off = BRIDGE_ONLY if mode is Mode.BRIDGE else EVERY_MODE
    if not Path(PYTHON).exists():
        cause = Cause(
            layer=Layer.PROGRAM,
            sentence=f"The proof from inside needs {PYTHON}, which is not there.",
            cure="Install the distribution's python3.",
        )
        return Finding(check=mode, state=State.WARNING, sentence=cause.sentence, layer=cause.layer, cure=cause.cure)
    words = ("brokered",) if network is Network.BROKERED else ()
    answer = _in_child(lambda: _prove(host, Authority(network=network), inside_program(*words)))
    return _judge(mode, answer, off)


def try_full_access(host: Host) -> Finding:
    """Build one that shows the machine's files, and have it prove that nothing else of the machine is there.

    Nothing is off where this fails: nobody has full access unless an administrator allows it.
    """
    authority = Authority(mode=Access.FULL_ACCESS)
    answer = _in_child(lambda: _prove(host, authority, (PYTHON, "-I", "-S", "-c", FILES_ONLY)))
    return _judge(FULL_ACCESS, answer, frozenset())


def _judge(check: str, answer: dict[str, Any], off: frozenset[Mode]) -> Finding:
    if "refused" in answer:
        sentence, cure = answer["refused"]
        return failed(check, Cause(layer=Layer.BOUNDARY, sentence=sentence, cure=cure), off)
    broken = [one for one in answer.get("checks", ()) if not one["ok"]]
    if broken or "checks" not in answer:
        told = "; ".join(f"{one['check']}: {one['detail']}" for one in broken) or "it gave no answer"
        cause = Cause(
            layer=Layer.BOUNDARY,
            sentence=f"A sandbox was built but does not hold what it promises ({told}).",
            cure="Use none until this is understood: `wicketgate doctor --inside --json` shows each check.",
        )
        return failed(check, cause, off)
    return fine(check, f"A real sandbox was built and proved itself in {len(answer['checks'])} checks from inside.")


def _prove(host: Host, authority: Authority, argv: tuple[str, ...]) -> dict[str, Any]:
    """In a child of its own: enter the user namespace, build, collect what the sandbox says of itself."""
    block_signals()
    kernel.enter_user_namespace(os.CLONE_NEWPID)
    with contextlib.ExitStack() as undo:
        if authority.network is Network.BROKERED:
            bridge = undo.enter_context(build_bridge())
            undo.callback(_serve_names(bridge))
        reader, writer = os.pipe2(os.O_CLOEXEC)
        trouble_reader, trouble_writer = os.pipe2(os.O_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        spec = SandboxSpec(call=Call(argv=argv), authority=authority)
        try:
            built = build(spec, Ground(host=host), stdio={0: nothing, 1: writer, 2: trouble_writer})
        except LaunchError as error:
            os.close(trouble_writer)
            told = os.read(trouble_reader, 4096).decode(errors="replace").strip().replace("\n", " ")
            return {"refused": [f"{error.cause} {told}".strip(), error.cure]}
        os.close(writer)
        os.close(trouble_writer)
        said: list[bytes] = []

        def drain() -> bool:
            said.append(os.read(reader, 65536))
            return bool(said[-1])

        supervise(built.launched, timeout=PATIENCE, drains={reader: drain})
        try:
            return dict(json.loads(b"".join(said)))
        except ValueError:
            told = os.read(trouble_reader, 4096).decode(errors="replace").strip().replace("\n", " ")
            return {"refused": [f"The sandbox's own proof did not run: {told or 'no output'}.", "Report this."]}


def _serve_names(bridge: Bridge) -> Callable[[], None]:
    """Stand in for a broker that answers nothing: an unanswered query must not count as a leak, nor hang the proof."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            kernel.die_with_parent()
            _answer_names(bridge)
        os._exit(0)

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)

    return end


def _answer_names(bridge: Bridge) -> NoReturn:
    """NXDOMAIN to every query, from the address that was asked (RFC 1035 §4.1.1)."""
    names = {one.fileno(): one for one in bridge.listeners.names}
    while True:
        for fd in select.select(list(names), [], [])[0]:
            query, control, _, peer = names[fd].recvmsg(4096, 1024)
            if len(query) < 12:
                continue
            answer = query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:]
            with contextlib.suppress(OSError):
                names[fd].sendmsg([answer], [(level, kind, data) for level, kind, data in control], 0, peer)


def _in_child(body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    told, _ = hear_child(partial(_be_child, body))
    return dict(json.loads(told)) if told else {}


def _be_child(body: Callable[[], dict[str, Any]], writer: int) -> NoReturn:
    answer: dict[str, Any]
    try:
        kernel.die_with_parent()
        answer = body()
    except BaseException as error:  # noqa: BLE001  a forked child ends here, whatever happened
        answer = {"refused": [f"The sandbox could not be built ({type(error).__name__}: {error}).", "Report this."]}
    with contextlib.suppress(OSError):
        os.write(writer, json.dumps(answer).encode())
    os._exit(0)
