"""Both ends of an HTTP/2 test: a client that writes frames of its own, and an origin on hyper-h2 that reads them back.

The client uses hyperframe and hpack only, so that it can send what no HTTP/2 library would.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events as on
import h2.exceptions
import h2.settings
from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

type Fields = Sequence[tuple[str | bytes, str | bytes]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HOST = "public4.example"
PIECE = 16384


def request(path: str = "/echo", *fields: tuple[str, str], method: str = "GET", host: str = HOST) -> Fields:
    return [(":method", method), (":scheme", "https"), (":authority", host), (":path", path), *fields]


@dataclass
class Answered:
    """What the client heard on one stream."""

    headers: list[dict[str, str]] = field(default_factory=list)  # interim ones, the final one, trailers
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str:
        return next((one[":status"] for one in self.headers if not one.get(":status", "1").startswith("1")), "")

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


class Client:
    """A connection whose frames are ours. Every read is answered with acknowledgements, unless `silent`."""

    def __init__(self, sock: ssl.SSLSocket, *, window: int = 65535, silent: bool = False) -> None:
        self.sock = sock
        self.encoder, self._decoder = Encoder(), Decoder()
        self.streams: dict[int, Answered] = {}
        self.goaway: GoAwayFrame | None = None
        self.closed = ""
        self.frames: list[Frame] = []
        self._silent = silent
        self._buffer = b""
        self._headers: list[bytes] = []
        self.raw(PREFACE, SettingsFrame(settings={SettingsFrame.INITIAL_WINDOW_SIZE: window}))

    def raw(self, *parts: bytes | Frame) -> None:
        """Send octets or frames as they are, in one write. A peer that has gone is found by reading."""
        data = b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts)
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def block(self, fields: Fields) -> bytes:
        """Fields as they are, whatever their case; the dynamic table is not used."""
        raw = [(_octets(name), _octets(value), True) for name, value in fields]
        return bytes(self.encoder.encode(raw, huffman=False))

    def headers(self, stream_id: int, fields: Fields, *, end: bool = True) -> HeadersFrame:
        frame = HeadersFrame(stream_id, self.block(fields))
        frame.flags |= {"END_HEADERS", "END_STREAM"} if end else {"END_HEADERS"}
        return frame

    def ask(self, fields: Fields, body: bytes | None = None, *, stream_id: int = 1) -> Answered:
        """Send one request and read until its stream ends."""
        self.raw(self.headers(stream_id, fields, end=body is None))
        if body is not None:
            self.raw(data(stream_id, body, end=True))
        return self.wait(stream_id)

    def wait(self, stream_id: int) -> Answered:
        """Read until the stream or the connection is over."""
        answered = self.streams.setdefault(stream_id, Answered())
        while not answered.ended and answered.reset is None and self.read():
            pass
        return answered

    def drain(self) -> None:
        """Read until the connection is over."""
        while self.read():
            pass

    def read(self) -> bool:
        """Handle the frames that one read brings; False at the end."""
        try:
            got = self.sock.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError as error:
            self.closed = str(error) or type(error).__name__
            return False
        if not got:
            self.closed = "closed"
            return False
        self._buffer += got
        while len(self._buffer) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._buffer)[:9])
            if len(self._buffer) < 9 + length:
                break
            frame.parse_body(memoryview(self._buffer[9 : 9 + length]))
            self._buffer = self._buffer[9 + length :]
            self._heard(frame)
        return True

    def _heard(self, frame: Frame) -> None:
        self.frames.append(frame)
        answered = self.streams.setdefault(frame.stream_id, Answered())
        match frame:
            case HeadersFrame() | ContinuationFrame():
                self._headers.append(frame.data)
                if "END_HEADERS" in frame.flags:
                    fields = self._decoder.decode(b"".join(self._headers))
                    answered.headers.append({str(name): str(value) for name, value in fields})
                    self._headers.clear()
                answered.ended |= "END_STREAM" in frame.flags
            case DataFrame():
                answered.body += frame.data
                answered.ended |= "END_STREAM" in frame.flags
                if not self._silent and frame.data:
                    self.raw(*(window(number, len(frame.data)) for number in {0, frame.stream_id}))
            case RstStreamFrame():
                answered.reset = frame.error_code
            case SettingsFrame() if "ACK" not in frame.flags and not self._silent:
                self.raw(SettingsFrame(flags=["ACK"]))
            case GoAwayFrame():
                self.goaway = frame
            case _:
                pass


def connect(context: ssl.SSLContext, address: str, *, host: str = HOST, **options: Any) -> Client:
    """Shake hands from inside the sandbox. `context` must offer h2."""
    sock = socket.create_connection((address, 443), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls = context.wrap_socket(sock, server_hostname=host)
    assert tls.selected_alpn_protocol() == "h2"
    return Client(tls, **options)


def data(stream_id: int, octets: bytes, *, end: bool = False) -> DataFrame:
    return DataFrame(stream_id, octets, flags=["END_STREAM"] if end else [])


def window(stream_id: int, increment: int) -> WindowUpdateFrame:
    return WindowUpdateFrame(stream_id, window_increment=increment)


def frame_of(kind: int, stream_id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """A frame of any type, length and flags (RFC 9113 §4.1)."""
    return struct.pack("!I", len(payload))[1:] + bytes((kind, flags)) + struct.pack("!I", stream_id) + payload


def _octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


@dataclass
class Seen:
    """A request as hyper-h2 read it."""

    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    trailers: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    def __getitem__(self, name: str) -> str:
        return dict(self.headers)[name]


class H2Origin:
    """An origin for `asyncio.start_server`. What it does is asked for by the path:

    `/echo` the body as it comes, then trailers if some came · `/only` fields that end the stream, with gRPC's ·
    `/reset/CODE` · `/late-reset/CODE` after some data · `/goaway/LAST` · `/interim/N` · `/big/N` · `/early` answers
    and resets with NO_ERROR · `/never` nothing · `/odd/FIELD` a malformed response · `/short` less than stated ·
    `/content/STATUS` content under any status · `/heads/SIZE` large heads, interim ones too.
    """

    def __init__(self, **settings: int) -> None:
        self.requests: list[Seen] = []
        self.connections = 0
        self.violations: list[str] = []
        self._settings = settings
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await _Served(self, reader, writer, self._settings).run()


class _Served:
    def __init__(
        self, origin: H2Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: dict[str, int]
    ) -> None:
        self.origin, self.reader, self.writer = origin, reader, writer
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding="latin-1",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        self.streams: dict[int, Seen] = {}
        self.changed = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        codes: dict[h2.settings.SettingCodes | int, int] = {
            h2.settings.SettingCodes[name]: value for name, value in settings.items()
        }
        self.h2.local_settings.update(codes)
        self.h2.local_settings.acknowledge()

    async def run(self) -> None:
        self.h2.initiate_connection()
        self.flush()
        while got := await self.reader.read(65536):
            try:
                events = self.h2.receive_data(got)
            except h2.exceptions.ProtocolError as error:
                self.origin.violations.append(repr(error))
                self.flush()
                return
            for event in events:
                self.handle(event)
            self.flush()
            self.changed.set()
            self.changed.clear()
        for task in self.tasks:
            task.cancel()

    def flush(self) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.writer.write(self.h2.data_to_send())

    def handle(self, event: on.Event) -> None:
        seen = self.streams.get(getattr(event, "stream_id", 0) or 0)
        match event:
            case on.RequestReceived():
                seen = self.streams[event.stream_id] = Seen(_text(event.headers))
                self.origin.requests.append(seen)
                self.tasks.append(asyncio.get_running_loop().create_task(self.answer(event.stream_id, seen)))
            case on.DataReceived() if seen is not None:
                seen.body += event.data
                if seen[":path"] != "/stall":
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case on.TrailersReceived() if seen is not None:
                seen.trailers = _text(event.headers)
            case on.StreamEnded() if seen is not None:
                seen.ended = True
            case on.StreamReset() if seen is not None:
                seen.reset = event.error_code
            case _:
                pass

    async def answer(self, stream_id: int, seen: Seen) -> None:
        word, _, rest = seen[":path"].split("?")[0][1:].partition("/")
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            await getattr(self, f"answer_{word.replace('-', '_')}", self.answer_echo)(stream_id, seen, rest)
            self.flush()

    async def answer_echo(self, stream_id: int, seen: Seen, _: str) -> None:
        self.h2.send_headers(stream_id, [(":status", "200"), ("x-origin", "h2")])
        self.flush()
        sent = 0
        while not (seen.ended and sent == len(seen.body)):
            piece = bytes(seen.body[sent : sent + PIECE])
            if piece:
                await self.send(stream_id, piece)
                sent += len(piece)
            else:
                await self.changed.wait()
        if seen.trailers:
            self.h2.send_headers(stream_id, seen.trailers, end_stream=True)
        else:
            self.h2.end_stream(stream_id)

    async def answer_only(self, stream_id: int, _: Seen, __: str) -> None:
        fields = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", "5"),
            ("grpc-message", "no"),
        ]
        self.h2.send_headers(stream_id, fields, end_stream=True)

    async def answer_reset(self, stream_id: int, _: Seen, code: str) -> None:
        self.h2.reset_stream(stream_id, int(code))

    async def answer_late_reset(self, stream_id: int, _: Seen, code: str) -> None:
        self.h2.send_headers(stream_id, [(":status", "200")])
        self.h2.send_data(stream_id, b"begun")
        self.h2.reset_stream(stream_id, int(code))

    async def answer_goaway(self, stream_id: int, seen: Seen, last: str) -> None:
        """GOAWAY first; the answer too, if it promises one."""
        if self.origin.connections > 1:
            await self.answer_echo(stream_id, seen, "")
            return
        self.writer.write(self.h2.data_to_send() + GoAwayFrame(0, last_stream_id=int(last)).serialize())
        if stream_id <= int(last):
            await self.answer_echo(stream_id, seen, "")

    async def answer_interim(self, stream_id: int, seen: Seen, count: str) -> None:
        for number in range(int(count)):
            self.h2.send_headers(stream_id, [(":status", "103"), ("x-number", str(number))])
        await self.answer_echo(stream_id, seen, "")

    async def answer_big(self, stream_id: int, _: Seen, length: str) -> None:
        self.h2.send_headers(stream_id, [(":status", "200"), ("content-length", length)])
        left = int(length)
        while left:
            piece = bytes(min(left, PIECE))
            await self.send(stream_id, piece)
            left -= len(piece)
        self.h2.end_stream(stream_id)

    async def answer_early(self, stream_id: int, _: Seen, __: str) -> None:
        self.h2.send_headers(stream_id, [(":status", "200")])
        self.h2.send_data(stream_id, b"early", end_stream=True)
        self.h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)

    async def answer_never(self, *_: object) -> None:
        return

    answer_stall = answer_never

    async def answer_odd(self, stream_id: int, _: Seen, which: str) -> None:
        self.flush()
        frame = HeadersFrame(stream_id, self.h2.encoder.encode(ODD[which]), flags=["END_HEADERS", "END_STREAM"])
        self.writer.write(frame.serialize())

    async def answer_short(self, stream_id: int, _: Seen, __: str) -> None:
        """Fewer octets than stated, and trailers that end the stream."""
        self.h2.send_headers(stream_id, [(":status", "200"), ("content-length", "9")])
        self.h2.send_data(stream_id, b"ok")
        self.h2.send_headers(stream_id, [("x-trailer", "1")], end_stream=True)

    async def answer_heads(self, stream_id: int, _: Seen, size: str) -> None:
        """As many interim heads as are relayed, and a final one, of so many octets each."""
        self.flush()
        for status, flags in [("103", ["END_HEADERS"])] * 10 + [("200", ["END_HEADERS", "END_STREAM"])]:
            block = self.h2.encoder.encode([(":status", status, True), ("x-a", "v" * int(size), True)], huffman=False)
            self.writer.write(HeadersFrame(stream_id, block, flags=flags).serialize())

    async def answer_content(self, stream_id: int, _: Seen, status: str) -> None:
        """Content, whatever the status says of it; hyper-h2 would not send that for some."""
        self.h2.send_headers(stream_id, [(":status", status)])
        self.flush()
        self.writer.write(data(stream_id, b"forged", end=True).serialize())

    async def send(self, stream_id: int, piece: bytes) -> None:
        while piece:
            room = min(self.h2.local_flow_control_window(stream_id), PIECE)
            if room <= 0:
                self.flush()
                await self.changed.wait()
                continue
            self.h2.send_data(stream_id, piece[:room])
            piece = piece[room:]
            self.flush()
            await self.writer.drain()


ODD: dict[str, list[tuple[str, str]]] = {
    "no-status": [("x-a", "b")],
    "two-statuses": [(":status", "200"), (":status", "404")],
    "switching": [(":status", "101")],
    "word": [(":status", "abc")],
    "late-status": [("x-a", "b"), (":status", "200")],
    "request-field": [(":status", "200"), (":path", "/")],
    "upper-case": [(":status", "200"), ("X-A", "b")],
    "connection": [(":status", "200"), ("connection", "close")],
    "chunked": [(":status", "200"), ("transfer-encoding", "chunked")],
    "line-feed": [(":status", "200"), ("x-a", "b\nset-cookie: c=d")],
    "nul": [(":status", "200"), ("x-a", "b\0c")],
    "length": [(":status", "200"), ("content-length", "5")],
    "many": [(":status", "200"), *((f"x-{number}", "v") for number in range(101))],
}


def _text(headers: Iterable[tuple[str | bytes, str | bytes]]) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in headers]
