"""A headless Chromium for tests, spoken to over its DevTools pipe: no port, no driver, nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one page; `complaints` collects what it logs, its errors and dialogs, and every request that is not the page."""

    def __init__(self, program: str, profile: Path) -> None:
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; the shell puts them there.
        # A session of its own, so that all of its processes can be ended together.
        shell = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        arguments = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *arguments],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._next_id = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._write)
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(10)
        os.close(self._read)

    def open(self, page: Path | str, width: int, height: int = 844, scheme: str = "light") -> None:
        self.complaints.clear()
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.go(page if isinstance(page, str) else page.as_uri())

    def go(self, address: str) -> None:
        self._loaded = False
        self._call("Page.navigate", url=address)
        deadline = time.monotonic() + 30
        while not self._loaded:
            self._receive(deadline)

    def ask(self, expression: str) -> Any:
        """What the expression evaluates to in the page; the page's own policy does not bind the debugger."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}}

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._next_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert time.monotonic() < deadline, "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, details: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Log.entryAdded":
            self.complaints.append(f"log: {details['entry'].get('text')}")
        elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            self.complaints.append(f"{event}: {json.dumps(details)[:300]}")
        elif event == "Network.requestWillBeSent" and details.get("type") != "Document":
            self.complaints.append(f"request: {details['request']['url'][:200]}")
