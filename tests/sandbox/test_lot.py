"""What a lot keeps: for whom, how many, how long. The sandboxes are stand-ins; `tests/live` parks real ones."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.errors import Code, LaunchError
from sandbox.ground import Ground
from sandbox.limits import Limits
from sandbox.lot import SHAPES, Lot
from sandbox.parked import Parked, Shape, shape_of, suits
from sandbox.spec import Authority, Call, HomeFile, Mode, Mount, Network, SandboxSpec

SHAPE = shape_of(Authority(), Limits())


def small(tasks: int) -> Shape:
    return shape_of(Authority(), Limits(tasks=tasks))


@dataclass(eq=False)
class Waiting:
    """In place of a parked sandbox."""

    shape: Shape
    since: float
    discarded: bool = False
    child: Any = field(default_factory=lambda: SimpleNamespace(ended=asyncio.get_running_loop().create_future()))

    async def discard(self) -> None:
        self.discarded = True


@dataclass
class Builder:
    made: list[Waiting] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    fails: bool = False
    tried: int = 0

    async def __call__(self, shape: Shape, _ground: Ground) -> Parked:
        self.tried += 1
        if self.fails:
            raise LaunchError(Code.SANDBOX_FAILED, "no", "no")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.made.append(Waiting(shape, asyncio.get_running_loop().time()))
        return cast("Parked", self.made[-1])

    def waiting(self, shape: Shape | None = None) -> int:
        return sum(not one.discarded for one in self.made if shape in (None, one.shape))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def builder() -> Builder:
    return Builder()


def lot_of(builder: Builder, most: int, **options: float) -> Lot:
    return Lot(cast("Ground", None), most, park=builder, **options)


async def test_it_is_filled_one_at_a_time_and_no_further(builder: Builder) -> None:
    lot = lot_of(builder, 3)
    lot.want(SHAPE)
    await until(lambda: len(lot) == 3)
    lot.want(SHAPE)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (builder.tried, builder.most_at_once) == (3, 1)
    await lot.close()
    assert builder.waiting() == 0


async def test_what_is_taken_is_replaced_and_never_given_twice(builder: Builder) -> None:
    lot = lot_of(builder, 2)
    lot.want(SHAPE)
    taken = []
    for _ in range(6):
        await until(lambda: len(lot) == 2)
        taken.append(lot.take(Network.NONE, Limits()))
    assert None not in taken
    assert len(set(map(id, taken))) == 6
    assert lot.take(Network.BROKERED, Limits()) is None
    assert lot.take(Network.NONE, Limits(tasks=99)) is None
    await lot.close()
    assert builder.waiting() >= 6, "what was taken is not the lot's to end"


async def test_shapes_share_and_the_one_asked_for_longest_ago_is_forgotten(builder: Builder) -> None:
    lot = lot_of(builder, 5)
    lot.want(small(100))
    await until(lambda: builder.waiting(small(100)) == 5)
    lot.want(small(200))
    await until(lambda: (builder.waiting(small(200)), builder.waiting(small(100))) == (3, 2))
    for number in range(SHAPES):
        lot.want(small(300 + number))
    await until(lambda: len(lot) == 5 and builder.waiting() == 5)
    assert builder.waiting(small(100)) == builder.waiting(small(200)) == 0
    await lot.close()


async def test_none_are_parked_where_none_may_be(builder: Builder) -> None:
    lot = lot_of(builder, 0)
    lot.want(SHAPE)
    await lot.close()
    lot = lot_of(builder, 3)
    lot.want(shape_of(Authority(mode=Mode.FULL_ACCESS), Limits()))
    for _ in range(50):
        await asyncio.sleep(0)
    assert builder.tried == 0
    await lot.close()


async def test_one_that_waited_too_long_goes_and_so_does_its_shape(builder: Builder) -> None:
    lot = lot_of(builder, 2, max_age=0.05)
    lot.want(SHAPE)
    await until(lambda: len(lot) == 2)
    await until(lambda: builder.waiting() == 0)
    tried = builder.tried
    await asyncio.sleep(0.1)
    assert builder.tried == tried, "nobody asked again"
    await lot.close()


async def test_one_that_died_is_never_given_and_is_replaced(builder: Builder) -> None:
    lot = lot_of(builder, 2)
    lot.want(SHAPE)
    await until(lambda: len(lot) == 2)
    dead = builder.made[:2]
    for one in dead:
        one.child.ended.set_result(137)
    await until(lambda: len(lot) == 2 and builder.tried == 4)
    assert all(one.discarded for one in dead)
    await lot.close()


async def test_what_cannot_be_made_is_tried_again_ever_more_seldom(builder: Builder) -> None:
    builder.fails = True
    lot = lot_of(builder, 2)
    lot.want(SHAPE)
    await until(lambda: builder.tried == 1)
    for _ in range(20):
        lot.want(SHAPE)
        await asyncio.sleep(0.005)
    assert builder.tried == 1
    builder.fails = False
    await until(lambda: len(lot) == 2)
    await lot.close()


@pytest.mark.parametrize(
    "authority",
    [
        Authority(network=Network.BROKERED),
        Authority(mode=Mode.FULL_ACCESS),
        Authority(trust=(Mount(source=Path("/a"), destination=Path("/etc/ssl")),)),
        Authority(trust_environment=(("SSL_CERT_FILE", "/x"),)),
        Authority(home=(HomeFile(place=PurePosixPath("x"), content=b"x"),)),
        Authority(hidden=(Path("/x"),)),
    ],
)
def test_another_authority_is_refused_before_anything_is_done(authority: Authority) -> None:
    """Its processes, pipes and script are not even looked at: there are none."""
    nothing = cast("Any", None)
    parked = Parked(
        shape=SHAPE,
        bridge=None,
        script=-1,
        word=-1,
        waiting=0,
        shell="",
        sources={},
        since=0.0,
        **dict.fromkeys(("built", "child", "ready"), nothing),
    )
    spec = SandboxSpec(call=Call(argv=("true",)), authority=authority)
    with pytest.raises(LaunchError, match="not of this shape"):
        parked.release(spec, nothing, None, None)


def test_a_workspace_and_a_time_are_no_part_of_the_shape() -> None:
    assert shape_of(Authority(workspace=Path("/w"), timeout=5), Limits()) == SHAPE


@pytest.mark.parametrize(
    ("call", "served"),
    [
        (Call(argv=("bash", "-c", "x")), True),
        (Call(argv=("/usr/bin/env",)), True),
        (Call(argv=("/usr/bin/../bin/env",)), False),
        (Call(argv=("/usr/bin/no-such-program",)), False),
        (Call(argv=("/usr/share",)), False),
        (Call(argv=("./mine",)), False),
        (Call(argv=("/srv/mine",)), False),
        (Call(argv=("a=b",)), False),
        (Call(argv=("bash", "\0")), False),
        (Call(argv=("bash",), directory="below"), False),
    ],
)
def test_which_commands_a_parked_sandbox_can_serve_exactly(call: Call, *, served: bool) -> None:
    assert suits(call) is served
