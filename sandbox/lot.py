"""The parked sandboxes of a runner: made in the background, one at a time, for the shapes that were asked for lately.

Bounded in number and in age, and emptied when the runner stops (a killed runner's go with its pid namespace). Nothing
depends on it: what is not there is built.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.errors import LaunchError
from sandbox.ground import Ground
from sandbox.limits import Limits
from sandbox.parked import Parked, Shape, can_be_parked, park
from sandbox.spec import Network

SHAPES = 4  # remembered at once
MAX_AGE = 600.0
AFTER_A_START = 0.05  # seconds: the command that was just started has the processor first
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # after one could not be made, or died

type Park = Callable[[Shape, Ground], Awaitable[Parked]]


@dataclass(slots=True)
class _Wanted:
    shape: Shape
    last_asked: float


class Lot:
    """All parked sandboxes. `most`: how many at once, 0 for none. `served`: how many were released so far.

    `park` builds one; `max_age` in seconds is for one that waits and for a shape that nobody asks for.
    """

    def __init__(self, ground: Ground, most: int, *, park: Park = park, max_age: float = MAX_AGE) -> None:
        self._ground = ground
        self._most = most
        self._park, self._max_age = park, max_age
        self._loop = asyncio.get_running_loop()
        self._wanted: list[_Wanted] = []  # the one asked for last comes first
        self._parked: list[Parked] = []
        self._discards: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._pause, self._not_before = 0.0, 0.0
        self._closed = False
        self.served = 0
        self._filling = asyncio.create_task(self._fill())

    def __len__(self) -> int:
        """How many wait at the moment."""
        return len(self._parked)

    def take(self, network: Network, limits: Limits) -> Parked | None:
        """The longest-parked one that may fit; it is the caller's, who releases or discards it."""
        self._drop_old()
        for parked in self._parked:
            if (parked.shape.authority.network, parked.shape.limits) == (network, limits):
                self._parked.remove(parked)
                self._pause = 0.0
                self._not_before = max(self._not_before, self._loop.time() + AFTER_A_START)
                self._changed.set()
                return parked
        return None

    def want(self, shape: Shape) -> None:
        """Remember that a sandbox of this shape was asked for, and park some for the next ones."""
        if self._most == 0 or not can_be_parked(shape):
            return
        self._wanted = [one for one in self._wanted if one.shape != shape]
        self._wanted.insert(0, _Wanted(shape, self._loop.time()))
        del self._wanted[min(SHAPES, self._most) :]
        self._drop_old()
        self._changed.set()

    def discard(self, parked: Parked) -> None:
        """Kill one, in the background."""
        task = asyncio.create_task(parked.discard())
        self._discards.add(task)
        task.add_done_callback(self._discards.discard)

    async def close(self) -> None:
        """Make no more, and kill those that wait."""
        self._closed = True
        self._filling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._filling
        while self._parked:
            self.discard(self._parked.pop())
        await asyncio.gather(*self._discards, return_exceptions=True)

    async def _fill(self) -> None:
        while True:
            self._changed.clear()
            self._drop_old()
            shape = self._missing()
            if shape is None:
                await self._wait(self._until_too_old())
            elif self._not_before > self._loop.time():
                await self._wait(self._not_before - self._loop.time())
            else:
                await self._add(shape)

    async def _wait(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _add(self, shape: Shape) -> None:
        try:
            parked = await self._park(shape, self._ground)
        except (LaunchError, OSError, TimeoutError):
            self._slow_down()  # whoever starts one hears why
            return
        self._parked.append(parked)
        parked.child.ended.add_done_callback(lambda _: self._died(parked))

    def _missing(self) -> Shape | None:
        """A shape with fewer than its part; nothing is parked beyond the whole number."""
        if len(self._parked) >= self._most:
            return None
        return next((shape for shape, part in self._parts().items() if self._count(shape) < part), None)

    def _parts(self) -> dict[Shape, int]:
        """How many of each shape: as many of one as of the other, and what is left over of the one asked for last."""
        if not self._wanted:
            return {}
        each, rest = divmod(self._most, len(self._wanted))
        return {one.shape: each + (rest if number == 0 else 0) for number, one in enumerate(self._wanted)}

    def _count(self, shape: Shape) -> int:
        return sum(parked.shape == shape for parked in self._parked)

    def _drop_old(self) -> None:
        """Forget shapes that nobody asks for; discard what is too old, of a forgotten shape, or more than its part."""
        now = self._loop.time()
        self._wanted = [one for one in self._wanted if now - one.last_asked < self._max_age]
        parts = self._parts()
        for parked in [*self._parked]:
            too_old = now - parked.since >= self._max_age
            if too_old or self._count(parked.shape) > parts.get(parked.shape, 0):
                self._parked.remove(parked)
                self.discard(parked)

    def _until_too_old(self) -> float | None:
        times = [one.last_asked for one in self._wanted] + [parked.since for parked in self._parked]
        return max(0.0, min(times) + self._max_age - self._loop.time()) if times else None

    def _died(self, parked: Parked) -> None:
        """Whoever killed it may do so again: the next one has to wait longer."""
        if parked in self._parked:
            self._parked.remove(parked)
            self.discard(parked)
            self._slow_down()
            self._changed.set()

    def _slow_down(self) -> None:
        if self._not_before > self._loop.time() + AFTER_A_START:
            return  # it is slow already; several died at once
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        self._not_before = self._loop.time() + self._pause
