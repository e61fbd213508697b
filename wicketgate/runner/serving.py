"""The runner itself, once it is the first process of its namespaces: it serves the peers that the gate lets in."""

import asyncio
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Final

from broker.api.callers import Caller
from broker.api.server import ApiServer
from broker.control.notify import notify
from netns import joining
from sandbox.cable import return_to
from sandbox.children import Child
from sandbox.ground import Ground, Namespaces
from sandbox.host import UNUSABLE
from sandbox.jobs import Jobs
from sandbox.live import Workshop
from sandbox.lot import Lot
from sandbox.next_bridge import NextBridge
from sandbox.output import readable
from sandbox.parked import shape_of
from sandbox.protect import Keeper, sweep
from sandbox.sessions import Sessions
from sandbox.spec import Authority
from sandbox.starter.orders import RunnersStarter
from sandbox.terminals import Terminals
from wicketgate import __version__
from wicketgate.runner.admission import Admission
from wicketgate.runner.app import runner_server
from wicketgate.runner.gate import NO_DESCRIPTOR, TAKEN, TOO_MANY, decode_peer
from wicketgate.runner.mode import FullAccess
from wicketgate.runner.operations import Operations
from wicketgate.runner.prepared import Prepared
from wicketgate.speech import say

MAX_MESSAGE: Final = 4096


async def serve(prepared: Prepared, channel: socket.socket, keeper: Keeper, starter: RunnersStarter | None) -> None:
    """Serve until told to end, or until the gate or the starter has gone. `starter`: None where nothing is started."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, joining.PASSED_ON)  # what came since the gate was there comes now
    for path in sweep(prepared.state):
        say(f"what a killed session left in {path} was taken away")
    if starter is not None:
        Child(starter.pid).ended.add_done_callback(lambda _: _give_up(stop))
    operations = _operations(prepared, keeper, starter)
    server = runner_server(operations, loop)
    channel.setblocking(False)
    peers = asyncio.create_task(_take_peers(channel, server))
    peers.add_done_callback(lambda _: stop.set())
    notify("READY=1")
    await stop.wait()
    notify("STOPPING=1")
    peers.cancel()
    await operations.close()
    await server.close()


def _give_up(stop: asyncio.Event) -> None:
    say("the process that starts commands has gone, and the runner ends")
    stop.set()


def _operations(prepared: Prepared, keeper: Keeper, starter: RunnersStarter | None) -> Operations:
    namespaces = Namespaces(net=os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    support = prepared.groups
    ground = Ground(
        host=prepared.ready.host or UNUSABLE,
        state=prepared.state,
        support=support,
        namespaces=namespaces,
        keeper=keeper,
        starter=starter,
    )
    attach = prepared.config.runner.attach
    workshop = Workshop(
        ground=ground,
        state=prepared.state,
        attach=None if attach is None else Path(attach),
        hidden=prepared.own_places(),
        lot=_lot(prepared, ground),
        next_bridge=NextBridge(partial(return_to, namespaces.net)),
    )
    return Operations(
        workshop=workshop,
        admission=Admission(
            most=prepared.config.most(), forbidden=prepared.forbidden, state=prepared.state, ready=prepared.ready
        ),
        terminals=Terminals(workshop, time.time),
        mode=FullAccess(),
        sessions=Sessions(workshop, time.time),
        jobs=Jobs(workshop, time.time),
        version=__version__,
        broker=attach,
    )


def _lot(prepared: Prepared, ground: Ground) -> Lot:
    lot = Lot(ground, prepared.config.runner.parked if prepared.ready.refused is None else 0)
    # What is asked for first is likely to be this; other shapes are parked once they were asked for.
    lot.want(shape_of(Authority(hidden=prepared.own_places()), prepared.config.most()))
    return lot


async def _take_peers(channel: socket.socket, server: ApiServer) -> None:
    """Take the connections that the gate has let in, until it has gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            await readable(channel.fileno(), loop.create_future())
            continue
        if not message:
            return
        peer = decode_peer(message)
        caller = Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid, administrator=peer.administrator)
        if not descriptors:
            news = NO_DESCRIPTOR
        elif await server.serve(socket.socket(fileno=descriptors[0]), caller):
            news = TAKEN
        else:
            news = TOO_MANY
        await loop.sock_sendall(channel, news)
