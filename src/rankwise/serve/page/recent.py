"""The latest findings and errors for the page, each kind once with its count."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

_MOST = 50
_LONGEST = 300
_CODE = re.compile(r"^(RW\d{3}) ")


class Findings(logging.Handler):
    """Collects failed requests, and warnings of the pool's log: workers that died, rows that are not batched any more."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    def note(self, text: str, model: str = "") -> None:
        """Note a finding; texts that differ only in numbers count as the same one."""
        text = text.splitlines()[0][:_LONGEST] if text else ""
        key = model, re.sub(r"\d+(\.\d+)?", "0", text)
        known = self._found.pop(key, None) or {"times": 0}
        code = _CODE.match(text)
        said = text[len(code[0]) :] if code else text
        self._found[key] = {
            "code": code[1] if code else "",
            "text": said,
            "model": model,
            "times": known["times"] + 1,
            "at": round(time.time(), 3),
        }
        while len(self._found) > _MOST:
            try:
                del self._found[next(iter(self._found))]
            except (KeyError, StopIteration, RuntimeError):  # another thread has just removed it
                break

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())

    def latest(self) -> list[dict[str, Any]]:
        """The newest first."""
        return list(self._found.values())[::-1]
