"""The log of a long-running command (`serve`, `worker`): a reader of stderr that is slow or gone must not block it."""

from __future__ import annotations

import logging
import os
import select

_PIECE = 4096  # bytes that a pipe takes without blocking once poll() says that it is writable


class LogOutput(logging.Handler):
    """Writes lines to a descriptor and never waits: a pipe without a reader would stop the whole server. Lines that do not fit are
    left out, and the next one that does not says how many."""

    def __init__(self, fd: int = 2) -> None:
        super().__init__()
        self._fd, self._left_out = fd, 0
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._left_out and self._write(self._lost_line(record)):
                self._left_out = 0
            self._left_out += not self._write(self.format(record))
        except Exception:
            self.handleError(record)

    def _lost_line(self, record: logging.LogRecord) -> str:
        text = f"{self._left_out} lines are not in this log: it was not read fast enough"
        return self.format(logging.LogRecord(record.name, logging.WARNING, "", 0, text, None, None))

    def _write(self, line: str) -> bool:
        data = (line + "\n").encode(errors="backslashreplace")
        for start in range(0, len(data), _PIECE):
            if not self._room.poll(0):
                return False
            os.write(self._fd, data[start : start + _PIECE])
        return True
