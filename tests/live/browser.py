"""A headless Chromium that is driven by its own protocol (DevTools), as a person would use it."""

import base64
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from websockets.sync.client import ClientConnection, connect

from tests.live.trust_clients import CHROMIUM

PATIENCE = 60.0
NEVER = 0.5  # seconds after which what should have happened by then is said not to happen; a condition was met before
_ADDRESS = re.compile(r"ws://[^\s]+:(\d+)/")


class Browser:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent = 0
        self.dialogs: list[str] = []
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its result."""
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(timeout=PATIENCE))
            if told.get("method") == "Page.javascriptDialogOpening":
                self.dialogs.append(told["params"]["message"])
            if told.get("id") == self._sent:
                assert "error" not in told, told
                return told["result"]

    def scripts(self, *, allowed: bool) -> None:
        """Let pages run scripts, or not."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def open(self, address: str) -> None:
        """Go to an address and wait until the page has come."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.call("Page.navigate", url=address)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression is, promises waited for. Our own question: it works where pages may run no script."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Ask until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"never: {expression}\n{self.text()}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """The text of the page."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def picture(self, path: Path) -> None:
        """Keep a picture of what is shown."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(profile: Path, *options: str) -> Iterator[Browser]:
    """A browser with a profile of its own; it is killed at the end."""
    words = [word for word in CHROMIUM if word != "--dump-dom"]
    words += ["--no-proxy-server", "--remote-debugging-port=0", f"--user-data-dir={profile}", *options, "about:blank"]
    # A short path: it puts sockets there (unix(7)).
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as temporary:
        environment = {**os.environ, "TMPDIR": temporary}
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            assert process.stderr is not None
            found = next(match for line in process.stderr if (match := _ADDRESS.search(line)))
            with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{found[1]}/json", timeout=PATIENCE) as answer:
                tab = next(one for one in json.load(answer) if one["type"] == "page")
            with connect(tab["webSocketDebuggerUrl"], max_size=1 << 26, proxy=None) as socket:
                yield Browser(socket)
        finally:
            process.kill()
            process.communicate()
