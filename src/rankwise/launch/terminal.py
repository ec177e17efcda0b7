"""The terminal that the job's lines, our own lines and the status line share; output that is not a terminal gets lines only."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time

from rankwise.launch.faults import Faults

_BAR_REST_S = 1.0  # a progress bar that was drawn so recently is still being drawn


class Terminal:
    """Knows whose unfinished line is in the cursor's row; while that is a prompt or a progress bar, no status line is drawn."""

    def __init__(self, faults: Faults) -> None:
        self._guard = faults.guard
        self.shows_status = sys.stderr.isatty()
        self._is_live = {False: sys.stdout.isatty(), True: sys.stderr.isatty()}
        self._status, self._drawn = "", False
        self._owner: object = None
        self._bar_s = -_BAR_REST_S

    def is_live(self, to_stderr: bool) -> bool:
        """Whether a line is shown before it is finished."""
        return self._is_live[to_stderr]

    def owns_row(self, owner: object) -> bool:
        """Whether the unfinished line in the cursor's row is this owner's, so that it may go on there."""
        return self._owner is owner

    def write(self, to_stderr: bool, data: bytes, owner: object = None) -> None:
        """Write bytes as they are, after a line end if another owner's line is unfinished."""
        with self._guard("take the status line away"):
            self._erase_status()
        if self._owner is not None and self._owner is not owner:
            self._put(to_stderr, b"\n")
        self._put(to_stderr, data)
        if self._is_live[to_stderr]:
            self._owner = None if data.endswith((b"\n", b"\r")) else owner
            self._bar_s = time.monotonic() if data.endswith(b"\r") else self._bar_s
        with self._guard("show the status line"):
            self._draw_status()

    def status(self, text: str) -> None:
        """Show this in the last row (terminals only); empty text removes it."""
        if self.shows_status and (text != self._status or not self._drawn):
            self._erase_status()
            self._status = text
            self._draw_status()

    def _draw_status(self) -> None:
        if self._status and self._owner is None and time.monotonic() - self._bar_s > _BAR_REST_S:
            self._say("\r\033[K" + self._status[: shutil.get_terminal_size().columns - 1])
            self._drawn = True

    def _erase_status(self) -> None:
        if self._drawn:
            self._say("\r\033[K")
            self._drawn = False

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def _put(self, to_stderr: bool, data: bytes) -> None:
        stream = sys.stderr.buffer if to_stderr else sys.stdout.buffer
        with contextlib.suppress(OSError, ValueError):  # without a terminal the logs go on
            stream.write(data)
            stream.flush()
