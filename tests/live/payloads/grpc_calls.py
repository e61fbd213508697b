"""A gRPC client: makes every kind of call to ADDRESS (HOST's) and prints what came of each as one JSON document."""

import json
import queue
import sys
import time

import grpc

host, port, address, authority_file = sys.argv[1:5]
with open(authority_file, "rb") as file:
    credentials = grpc.ssl_channel_credentials(file.read())
options = [
    ("grpc.ssl_target_name_override", host),
    ("grpc.default_authority", f"{host}:{port}"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
channel = grpc.secure_channel(f"{address}:{port}", credentials, options)
found: dict[str, object] = {}


def outcome(call: object) -> list[str]:
    try:
        call()  # type: ignore[operator]
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return ["OK", ""]


def method(kind: str, name: str) -> object:
    return getattr(channel, kind)(f"/test.Echo/{name}")


unary = method("unary_unary", "Unary")
reply, call = unary.with_call(b"hello", metadata=(("x-echo", "value"),), timeout=20)  # type: ignore[attr-defined]
found["unary"] = reply.decode()
found["trailing"] = {k: v if isinstance(v, str) else list(v) for k, v in call.trailing_metadata()}
large = b"x" * 3_000_000
found["large"] = unary(large, timeout=20) == large  # type: ignore[operator]
found["count"] = [int(one) for one in method("unary_stream", "Count")(b"200", timeout=20)]  # type: ignore[operator]
found["collect"] = len(method("stream_unary", "Collect")((b"y" * 1000 for _ in range(300)), timeout=20))  # type: ignore[operator]

# One stream that lives on: each message waits for the echo of the last one.
outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
talk = method("stream_stream", "Talk")(iter(outgoing.get, None), timeout=60)  # type: ignore[operator]
echoed, delays = 0, []
for number in range(300):
    begun = time.perf_counter()
    outgoing.put(str(number).encode())
    echoed += next(talk) == str(number).encode()
    delays.append(time.perf_counter() - begun)
    if number == 100:
        found["beside"] = unary(b"beside it", timeout=20).decode()  # type: ignore[operator]
outgoing.put(None)
found["talk"], found["rest"] = echoed, len(list(talk))
found["talk_ms"] = sorted(delays)[150] * 1000

found["fail"] = outcome(lambda: method("unary_unary", "Fail")(b"", timeout=20))  # type: ignore[operator]
found["fail_late"] = outcome(lambda: list(method("unary_stream", "FailLate")(b"", timeout=20)))  # type: ignore[operator]
found["deadline"] = outcome(lambda: method("unary_unary", "Never")(b"", timeout=0.5))  # type: ignore[operator]
found["denied"] = outcome(lambda: method("unary_unary", "Secret")(b"", timeout=20))  # type: ignore[operator]
cancelled = method("unary_unary", "Never").future(b"", timeout=20)  # type: ignore[attr-defined]
cancelled.cancel()
found["after"] = unary(b"still here", timeout=20).decode()  # type: ignore[operator]
print(json.dumps(found))
