"""The process that forks for a runner: small, so that a start need not copy the tables of the runner's memory.

It is started before the runner serves, does what it is told over a channel, one thing after the other, and knows
nothing of what it starts. What it forks are children of the runner, its own parent (CLONE_PARENT), and of the runner's
thread that started it: that one waits for them, and they end with it. It is in the runner's pid namespace, so it ends
with the runner; and a runner without it starts nothing more, so it ends, too.

One further process waits for the next sandbox: the first one of a pid namespace, with mounts of its own, known to the
keeper. It knows nothing of that sandbox before it is told, serves this one, and ends with the runner as they do.

It is an interpreter of its own, with little loaded. Where the serving user may not read the interpreter's files, it is
a copy of the runner: the same, but slower.
"""

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from netns import handoff, joining, kernel
from sandbox import launch
from sandbox.launch import Birth, Entry

NAME, NEXT_NAME = "wicketgate-fork", "wicketgate-next"  # in /proc/PID/comm
READY_SECONDS: Final = 10.0
MAX_ANSWER, MAX_DESCRIPTORS = 4096, 253  # SCM_MAX_FD: more cannot be sent
MOST_WAITING: Final = 16  # for sessions; each holds about half a megabyte
_READY: Final = b"ready"
_NOTHING: Final = Entry(init=0, argv=(), environment=(), directory="", seccomp=b"", rlimits=(), stdio={0: 0})
_CODE: Final = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); from sandbox import starter; starter.main(*sys.argv[2:])"
)


class RunnersStarter:
    """The runner's side; a `launch.Starter`. `pid` is a child of the runner."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel
        self._unheard: deque[_Order] = deque()  # what was ordered and is not answered yet, in order
        self._next: RunnersSpare | None = None  # waits for the next sandbox
        self.waiting: list[RunnersSpare] = []  # for sessions; the one that was made last comes last

    def bear(self, birth: Birth) -> int:
        """As `launch.Starter` has it."""
        numbers = sorted(birth.descriptors)
        descriptors = [birth.bwrap_fd, *(birth.descriptors[number] for number in numbers)]
        if birth.network >= 0:
            descriptors.append(birth.network)
        document = {"argv": birth.argv, "reset": birth.reset, "rlimits": birth.rlimits, "numbers": numbers}
        if birth.urgent and (waiting := self._next) is not None:
            self._next = None
            if pid := waiting.give("bear", document, descriptors):
                return pid
        return self._ask("bear", document, descriptors)

    def expect_birth(self) -> None:
        """As `launch.Starter` has it."""
        if self._next is None:
            with contextlib.suppress(OSError):  # without one it takes longer, that is all
                self._next = self._have_wait("await", {})

    def expect_move(self, group: str) -> None:
        """As `launch.Starter` has it."""
        with contextlib.suppress(OSError):  # the kernel then waits when the move is made
            _tell(self._channel, "expect", {"group": group}, [])

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """As `launch.Starter` has it."""
        return self._ask("join", *_told(entry, reset, report))

    def prepare(self, groups: tuple[str, ...]) -> "RunnersSpare":
        """As `launch.Starter` has it."""
        spare = self._have_wait("wait", {"groups": groups})
        self.waiting.append(spare)
        if len(self.waiting) > MOST_WAITING:
            self.waiting[0].retire()
        return spare

    def _have_wait(self, what: str, document: Mapping[str, Any]) -> "RunnersSpare":
        near, far = handoff.pair()
        try:
            return RunnersSpare(self._order(what, document, [far.fileno()]), near, self)
        except BaseException:
            near.close()
            raise
        finally:
            far.close()

    def _ask(self, what: str, document: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        return self.hear(self._order(what, document, descriptors))

    def _order(self, what: str, document: Mapping[str, Any], descriptors: Sequence[int]) -> "_Order":
        _tell(self._channel, what, document, descriptors)
        self._unheard.append(_Order())
        return self._unheard[-1]

    def hear(self, order: "_Order") -> int:
        """The pid of what was ordered, as soon as it is known. Raises OSError."""
        while order.told is None:
            answer = self._channel.recv(MAX_ANSWER)
            if not answer:
                raise OSError(0, "the process that starts commands has gone")
            self._unheard.popleft().told = json.loads(answer)
        if "pid" in order.told:
            return int(order.told["pid"])
        raise OSError(order.told["failed"], os.strerror(order.told["failed"]), order.told["step"])


@dataclass(slots=True, eq=False)
class _Order:
    """A process that the starter was told to fork, and what it answered."""

    told: dict[str, Any] | None = None


class RunnersSpare:
    """A process that waits for one thing to start, and a `launch.Spare` where that is an entry."""

    def __init__(self, order: _Order, channel: socket.socket, starter: RunnersStarter) -> None:
        self._order = order
        self._channel = channel
        self._starter = starter

    def join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        """As `launch.Starter` has it. Where it has ended meanwhile another one is born."""
        return self.give("join", *_told(entry, reset, report)) or self._starter.join(entry, reset, report)

    def give(self, what: str, document: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Tell it what to start; its pid, 0 where it has ended meanwhile or was never born."""
        try:
            _tell(self._channel, what, document, descriptors)
        except OSError:
            if pid := self.discard():
                os.waitpid(pid, 0)
            return 0
        self.retire()
        return self._pid()

    def retire(self) -> None:
        """Let it wait no longer."""
        self._channel.close()
        if self in self._starter.waiting:
            self._starter.waiting.remove(self)

    def _pid(self) -> int:
        try:
            return self._starter.hear(self._order)
        except OSError:
            return 0

    def discard(self) -> int:
        """As `launch.Spare` has it."""
        self.retire()
        pid = self._pid()
        if pid:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it, so the number is still its own
        return pid


def _told(entry: Entry, reset: tuple[int, ...], report: int) -> tuple[dict[str, Any], list[int]]:
    numbers = sorted(entry.stdio)
    document = {
        "entry": {**asdict(entry), "seccomp": entry.seccomp.hex(), "stdio": None},
        "reset": reset,
        "numbers": numbers,
    }
    return document, [report, *(entry.stdio[number] for number in numbers)]


def _tell(channel: socket.socket, what: str, document: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    content = os.memfd_create("wicketgate", os.MFD_CLOEXEC)  # a command line may be larger than a message
    try:
        with os.fdopen(os.dup(content), "wb") as file:
            file.write(json.dumps(document).encode())
        socket.send_fds(channel, [what.encode()], [content, *descriptors])
    finally:
        os.close(content)


def start_starter(keeper: socket.socket, announced: bytes) -> RunnersStarter:
    """Start it, and wait until it can serve. Call it in the first process of a pid namespace, without threads.

    `announced`: what each sandbox tells on the keeper's connection before it executes anything. Raises OSError.
    """
    for is_own_program in (True, False):
        near, far = handoff.pair()
        pid = os.fork()
        if pid == 0:
            near.close()
            _be_starter(far, keeper, announced, is_own_program=is_own_program)
        far.close()
        if _is_ready(near):
            starter = RunnersStarter(pid, near)
            starter.expect_birth()
            return starter
        near.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    raise OSError(0, "the process that starts commands cannot be started")


def _is_ready(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(READY_SECONDS * 1000)) and channel.recv(MAX_ANSWER) == _READY


def _be_starter(channel: socket.socket, keeper: socket.socket, announced: bytes, *, is_own_program: bool) -> NoReturn:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if is_own_program:
            kernel.hand_capabilities_on()
            launch.go_on_as_interpreter(
                _CODE,
                "\n".join(path for path in sys.path if path),
                *(str(one.fileno()) for one in (channel, keeper)),
                announced.decode(),
                keep={channel.fileno(), keeper.fileno()},
            )
            os._exit(1)
        kernel.keep_descriptors({0, 1, 2, channel.fileno(), keeper.fileno()})
        Serving(channel, keeper, announced).run()
    except BaseException:  # noqa: BLE001, S110  a forked child ends here; whoever waits for it sees its end
        pass
    os._exit(1)


def main(channel: str, keeper: str, announced: str) -> NoReturn:
    """What the interpreter of its own begins with."""
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # others have the same user: they must not be able to steer this one
        kernel.keep_capabilities_to_oneself()
        ends = [socket.socket(fileno=int(number)) for number in (channel, keeper)]
        for end in ends:
            end.set_inheritable(False)
        Serving(ends[0], ends[1], announced.encode()).run()
    except BaseException:  # noqa: BLE001, S110  nobody to tell: the runner sees its end
        pass
    os._exit(1)


class Serving:
    """The process itself."""

    def __init__(self, channel: socket.socket, keeper: socket.socket, announced: bytes) -> None:
        self._channel = channel
        self._keeper, self._announced = keeper, announced
        self._runner = os.pidfd_open(os.getppid())
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve until the runner has gone."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for `_expect_a_move`
        gc.disable()  # a collection touches, and so copies, every page that is shared with a child; nothing is cyclic
        kernel.set_name(NAME)
        os.unshare(os.CLONE_NEWPID)  # it has the right
        os.setns(self._own, os.CLONE_NEWPID)
        self._channel.send(_READY)
        while True:
            what, descriptors = _hear(self._channel)
            if not what:
                return
            try:
                self._obey(what, descriptors)
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _obey(self, what: bytes, descriptors: list[int]) -> None:
        answer: dict[str, Any]
        if what == b"expect":  # the only one that is not answered
            if descriptors:
                _expect_a_move(_read(descriptors[0])["group"])
            return
        if not descriptors:
            answer = {"failed": errno.EMFILE, "step": "start"}
            self._channel.send(json.dumps(answer).encode())
            return
        content, *others = descriptors
        document = _read(content)
        try:
            match what:
                case b"bear":
                    pid = self._bear(lambda: _birth(document, others))
                case b"await":
                    pid = self._bear(lambda: _hear_birth(others[0]))
                case b"join":
                    pid = joining.clone_sibling()
                    if pid == 0:
                        launch.join(*_entry(document, others))
                case _:
                    pid = joining.clone_sibling()
                    if pid == 0:
                        _wait(document["groups"], others[0])
            answer = {"pid": pid}
        except OSError as error:
            answer = {"failed": error.errno or 0, "step": str(error.filename or "start")}
        self._channel.send(json.dumps(answer).encode())

    def _bear(self, hear_birth: Callable[[], Birth]) -> int:
        os.unshare(os.CLONE_NEWPID)
        try:
            pid = joining.clone_sibling()
            if pid == 0:
                launch.become_bwrap(hear_birth, parent=self._runner, announce=self._announce)
        finally:
            os.setns(self._own, os.CLONE_NEWPID)
        return pid

    def _announce(self) -> None:
        handoff.announce(self._keeper, self._announced)


def _read(content: int) -> dict[str, Any]:
    with open(content, "rb", closefd=False) as file:
        file.seek(0)
        document: dict[str, Any] = json.load(file)
    return document


def _birth(document: Mapping[str, Any], descriptors: list[int]) -> Birth:
    bwrap, *rest = descriptors
    numbers = document["numbers"]
    return Birth(
        argv=tuple(document["argv"]),
        bwrap_fd=bwrap,
        descriptors=dict(zip(numbers, rest, strict=False)),
        network=rest[len(numbers)] if len(rest) > len(numbers) else -1,
        reset=tuple(document["reset"]),
        rlimits=_triples(document["rlimits"]),
    )


def _hear_birth(channel: int) -> Birth:
    """In the process that waits for the next sandbox. Ends it where none comes."""
    kernel.raise_descriptors()  # whoever comes must not fail for a bound that held when this one was forked
    kernel.keep_descriptors({0, 1, 2, channel})
    kernel.set_name(NEXT_NAME)
    _rehearse({"argv": [], "reset": [], "rlimits": [], "numbers": [0]}, _birth)
    what, descriptors = _hear(socket.socket(fileno=channel))
    if not what:
        os._exit(0)
    if not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "start")
    return _birth(_read(descriptors[0]), descriptors[1:])


def _rehearse(document: Mapping[str, Any], understand: Callable[[Mapping[str, Any], list[int]], object]) -> None:
    """Hear once what means nothing. To a process that was just forked every page that it touches is copied first, and
    what was done once ahead need not be waited for later.
    """
    near, far = handoff.pair()
    with near, far, Path(os.devnull).open("rb") as nothing:
        _tell(near, "rehearse", document, [nothing.fileno()] * 2)
        _, descriptors = _hear(far)
        understand(_read(descriptors[0]), descriptors[1:])
        for fd in descriptors:
            os.close(fd)


def _expect_a_move(group: str) -> None:
    """Have the kernel make ready for a move into a control group, while something else is done.

    The first move after a while waits until every processor has taken notice (a grace period of RCU: 10 ms and more),
    one shortly after it does not. So a child moves itself, and ends. It is the runner that moves what is to be bounded;
    whether this helps it or fails is nobody's concern.
    """
    with contextlib.suppress(OSError):
        if os.fork() == 0:
            with contextlib.suppress(OSError):
                Path(group).write_text(str(os.getpid()))
            os._exit(0)


def _wait(groups: Sequence[str], channel: int) -> NoReturn:
    """Go into the groups, wait for one entry, and start that."""
    try:
        kernel.keep_descriptors({0, 1, 2, channel})
        for group in groups:
            Path(group).write_text(str(os.getpid()))
        _rehearse(_told(_NOTHING, (), 0)[0], _entry)
        what, descriptors = _hear(socket.socket(fileno=channel))
        if what:
            entry, reset, report = _entry(_read(descriptors[0]), descriptors[1:])
            launch.join(replace(entry, groups=()), reset, report)
    except BaseException:  # noqa: BLE001, S110  a forked child ends here; whoever waits for it sees its end
        pass
    os._exit(125)


def _hear(channel: socket.socket) -> tuple[bytes, list[int]]:
    what, descriptors, flags, _ = socket.recv_fds(channel, MAX_ANSWER, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & socket.MSG_CTRUNC:  # none is left: what came without all of its descriptors must not begin
        for fd in descriptors:
            os.close(fd)
        return what, []
    return what, descriptors


def _entry(document: Mapping[str, Any], descriptors: list[int]) -> tuple[Entry, tuple[int, ...], int]:
    report, *stdio = descriptors
    fields = document["entry"]
    entry = Entry(
        **{
            **fields,
            "argv": tuple(fields["argv"]),
            "environment": tuple((name, value) for name, value in fields["environment"]),
            "seccomp": bytes.fromhex(fields["seccomp"]),
            "rlimits": _triples(fields["rlimits"]),
            "groups": tuple(fields["groups"]),
            "stdio": dict(zip(document["numbers"], stdio, strict=True)),
        }
    )
    return entry, tuple(document["reset"]), report


def _triples(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((limit, soft, hard) for limit, soft, hard in rows)
