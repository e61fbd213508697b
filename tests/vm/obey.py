"""Inside the test machine: take commands from the host, one JSON line each, and answer with what they said.

Standard library only: it runs on the machine's own Python.
"""

import base64
import json
import subprocess
import sys
from typing import IO, Any


def serve(line: IO[bytes], out: IO[bytes]) -> None:
    """Answer until the host closes the line. The first line from here says that the machine is ready."""
    out.write(b'{"ready": true}\n')
    while text := line.readline():
        out.write(json.dumps(obey(json.loads(text))).encode() + b"\n")


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end, or to the end of its time."""
    try:
        done = subprocess.run(
            order["argv"],
            check=False,
            input=base64.b64decode(order["given"]),
            capture_output=True,
            timeout=order["seconds"],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"} | order["environment"],
            cwd=order["directory"],
        )
    except subprocess.TimeoutExpired as error:
        return {"code": None, "stdout": _pack(error.stdout), "stderr": _pack(error.stderr)}
    except OSError as error:
        return {"code": 127, "stdout": "", "stderr": _pack(str(error).encode())}
    return {"code": done.returncode, "stdout": _pack(done.stdout), "stderr": _pack(done.stderr)}


def _pack(said: bytes | None) -> str:
    return base64.b64encode(said or b"").decode()


if __name__ == "__main__":
    with open(sys.argv[1], "r+b", buffering=0) as port:
        serve(port, port)
