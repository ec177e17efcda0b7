"""Carries what the job prints: whole into each rank's log, line by line with the rank in front onto the terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import shutil
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rankwise.launch.faults import Faults
from rankwise.launch.tags import TagReader
from rankwise.launch.terminal import Terminal

_CHUNK = 1 << 16
_PROMPT_S = 0.15  # an unfinished line that does not grow for so long is a prompt, or something else to show now
_REST_S = 0.05  # pause after a failure, because the same event is there again at once
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")  # only real line ends: not the form feeds and others of splitlines()


@dataclass
class _Source:
    """One stream of one process; pid None is the launcher's own pipe, shared by all processes without a pipe of their own."""

    pid: int | None
    to_stderr: bool
    partial: bytearray = field(default_factory=bytearray)
    partial_s: float = 0.0  # when the partial line last grew
    mid_line: bool = False  # the last piece shown did not end its line
    after_return: bool = False  # it ended in a carriage return: a progress bar, or "\r\n" cut in two
    tags: TagReader | None = None  # for a stream that ranks share, in which tags say which rank each piece is from
    ranks: dict[int, _Source] = field(default_factory=dict)  # the sources of those ranks


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class OutputPump:
    """Reads the job's output in a thread of its own, so that a rank never blocks on a full pipe while the watcher is busy."""

    def __init__(self, sink: Path, logs: Path, is_tagged: bool = False, faults: Faults | None = None) -> None:
        self._logs = logs
        self._faults = faults or Faults()
        self._terminal = Terminal(self._faults)
        self._ranks: dict[int, int] = {}
        self._files: dict[int | None, IO[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(sink))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self.shared_writers: list[int] = []
        for to_stderr in (False, True):
            read_end, write_end = os.pipe()
            self._add(read_end, _Source(None, to_stderr, tags=TagReader() if is_tagged else None))
            self.shared_writers.append(write_end)
        self._lock = threading.RLock()  # reentrant: a fault noted while it is held is printed through `say`
        self._ending = False
        self._is_done = False
        self._is_muted = False
        self._unfinished: dict[int, _Source] = {}  # with a part of a line that is not on the terminal yet
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self.shows_status = self._terminal.shows_status
        self.bytes_seen: dict[int | None, int] = {}

    def identities(self) -> str:
        """How the probe recognises that a descriptor is our pipe."""
        return ",".join(f"{s.st_dev}:{s.st_ino}" for s in map(os.fstat, self.shared_writers))

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def hand_over(self) -> None:
        """Close our copies of the pipes' writing ends: from now on only the job holds them."""
        for fd in self.shared_writers:
            os.close(fd)
        self.shared_writers = []

    def name_rank(self, pid: int, rank: int) -> None:
        """From now on this process's lines are this rank's; what it wrote before is put at the head of the rank's log."""
        with self._lock:
            if self._ranks.get(pid) == rank:
                return
            self._ranks[pid] = rank
            file = self._files.pop(pid, None)
            if file is not None:
                file.close()
                self._merge(self._logs / f"pid-{pid}.log", self._logs / f"rank-{rank}.log")

    def last_output(self, pid: int | None) -> str:
        """The end of what a process has printed so far; None stands for the command and all that share its pipe."""
        return tail_of(self._log_path(pid))

    def complete_log(self, rank: int, files: list[str]) -> None:
        """Every rank has a log: with what the user sent to files of their own appended, or empty if it said nothing."""
        target = self._logs / f"rank-{rank}.log"
        with contextlib.suppress(OSError):
            target.touch(mode=0o600)
            for file in dict.fromkeys(files):
                if Path(file).is_file() and not target.samefile(file):  # a file appended to itself would never end
                    with open(file, "rb") as source, target.open("ab") as log:
                        shutil.copyfileobj(source, log)

    def status(self, text: str) -> None:
        """Show the live line (terminals only); empty text removes it."""
        with self._lock:
            self._terminal.status(text)

    def say(self, text: str) -> None:
        """Print a text of our own between the job's lines, on stderr."""
        with self._lock:
            self._terminal.write(True, text.encode(errors="backslashreplace") + b"\n")

    def mute(self) -> None:
        """After the verdict: what the job still prints while it is being ended goes to the logs only."""
        self._is_muted = True

    def stop(self) -> None:
        """Take in what is still in the pipes, then end. Only the first call does so."""
        if self._ending:
            return
        self._ending = True
        os.write(self._wake_write, b"x")
        self._thread.join(timeout=10)
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
        self.hand_over()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self.status("")

    def _run(self) -> None:
        while not self._is_done:
            with self._faults.guard("pass on the job's output") as turn:
                self._turn()
            if turn.has_failed:
                time.sleep(_REST_S)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Source):
                with self._faults.guard("show the last of the job's output"):
                    self._close(key.fd, key.data)
        self._selector.close()

    def _turn(self) -> None:
        """Wait for something to read, and read it; a stream that fails does not hold up the others."""
        ready = self._selector.select(0 if self._ending else _PROMPT_S if self._unfinished else None)
        if self._ending and not any(key.data is not None for key, _ in ready):
            self._is_done = True
            return
        if any(key.data == self._accept for key, _ in ready):  # ranks name themselves before their output is shown
            with self._faults.guard("tell the ranks' output apart") as hearing:
                self._accept()
            if hearing.has_failed:  # for example no descriptor is left; the message is still there at the next look
                time.sleep(_REST_S)
        for key, _ in ready:
            if isinstance(key.data, _Source):
                with self._faults.guard("read the job's output"):
                    self._read(key.fd, key.data)
            elif key.fd == self._wake_read and not self._ending:
                os.read(self._wake_read, 64)
        with self._faults.guard("show an unfinished line"), self._lock:
            self._show_unfinished()

    def _accept(self) -> None:
        """Take every message that waits: new streams, and ranks that have learnt their name."""
        with contextlib.suppress(BlockingIOError):
            while True:
                link, _ = self._listener.accept()
                with contextlib.suppress(ConnectionError, TimeoutError, ValueError), link:
                    self._take_message(link)

    def _take_message(self, link: socket.socket) -> None:
        """Take one message; its sender waits for our answer before it closes the pipe it had."""
        link.settimeout(1.0)
        header, fds, _, _ = socket.recv_fds(link, 64, 2)
        pid, names, rank = header.decode().split()
        if len(fds) < len(names.strip("-")):  # the kernel had no room for them here
            for fd in fds:
                os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for fd, name in zip(fds, names.strip("-"), strict=True):
            self._add(fd, _Source(int(pid), name == "e"))
        if rank.isdecimal():
            self.name_rank(int(pid), int(rank))
        if fds:
            link.send(b"k")

    def _add(self, fd: int, source: _Source) -> None:
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, source)

    def _read(self, fd: int, source: _Source) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(fd, source)
            return
        with self._lock:
            unfinished = bytes(source.partial)
            with self._faults.guard("sort the job's output by rank") as sorting:
                self._take_tagged(source, source.tags.feed(data)) if source.tags is not None else self._take(source, data)
            if sorting.has_failed:
                source.partial.clear()
                _write_plainly(source, unfinished + data)

    def _take_tagged(self, source: _Source, pieces: list[tuple[int | None, bytes]]) -> None:
        for rank, piece in pieces:
            if rank is None:
                self._take(source, piece)
                continue
            stand_in = -1 - rank  # in place of the pid, which mpirun's tag does not hold
            self._ranks[stand_in] = rank
            self._take(source.ranks.setdefault(rank, _Source(stand_in, source.to_stderr)), piece)

    def _take(self, source: _Source, data: bytes) -> None:
        self.bytes_seen[source.pid] = self.bytes_seen.get(source.pid, 0) + len(data)
        with self._faults.guard("write the logs"):
            self._log(source.pid, data)
        source.partial += data
        end = max(source.partial.rfind(b"\n"), source.partial.rfind(b"\r")) + 1
        if end == 0 and len(source.partial) > _CHUNK:
            end = len(source.partial)
        if end:
            lines = bytes(source.partial[:end])
            del source.partial[:end]
            self._emit(source, lines)
        if source.partial and self._terminal.is_live(source.to_stderr):
            source.partial_s = time.monotonic()
            self._unfinished[id(source)] = source

    def _show_unfinished(self) -> None:
        """Show lines that have rested unfinished: a prompt has no line end."""
        for key, source in list(self._unfinished.items()):
            if not source.partial:
                del self._unfinished[key]
            elif time.monotonic() - source.partial_s >= _PROMPT_S:
                del self._unfinished[key]
                piece = bytes(source.partial)
                source.partial.clear()
                self._emit(source, piece)

    def _close(self, fd: int, source: _Source) -> None:
        self._selector.unregister(fd)
        os.close(fd)
        with self._lock:
            if source.tags is not None:
                self._take_tagged(source, source.tags.rest())
            for part in (source, *source.ranks.values()):
                if part.partial:
                    self._emit(part, bytes(part.partial) + b"\n")
                    part.partial.clear()

    def _emit(self, source: _Source, data: bytes) -> None:
        if self._is_muted:
            return
        with self._faults.guard("show the job's output") as showing:
            self._show(source, data)
        if showing.has_failed:
            _write_plainly(source, data)

    def _show(self, source: _Source, data: bytes) -> None:
        """Write to the terminal, with the rank in front of each line."""
        rank = self._ranks.get(source.pid) if source.pid is not None else None
        if rank is not None:
            prefix = f"[rank {rank}] ".encode()
            lines = _LINE.findall(data)
            goes_on = self._goes_on(source, lines[0])
            shown = [line if i == 0 and goes_on else prefix + line for i, line in enumerate(lines)]
            source.after_return = data.endswith(b"\r")
            source.mid_line = not data.endswith(b"\n")  # after a lone \r the line may go on: "\r\n" cut in two
            data = b"".join(shown)
        self._terminal.write(source.to_stderr, data, source)

    def _goes_on(self, source: _Source, line: bytes) -> bool:
        """Whether this piece continues the line that is there already, and needs no rank in front."""
        if not source.mid_line or source.after_return:
            return source.mid_line and line == b"\n"
        return not self._terminal.is_live(source.to_stderr) or self._terminal.owns_row(source)

    def _log(self, pid: int | None, data: bytes) -> None:
        file = self._files.get(pid)
        if file is None:
            try:
                file = self._files[pid] = open(self._log_path(pid), "ab", buffering=0, opener=_private)  # noqa: SIM115  kept open
            except OSError:
                return
        with contextlib.suppress(OSError):  # a full disk must not take the job's terminal away
            file.write(data)

    def _log_path(self, pid: int | None) -> Path:
        rank = self._ranks.get(pid) if pid is not None else None
        return self._logs / ("launcher.log" if pid is None else f"pid-{pid}.log" if rank is None else f"rank-{rank}.log")

    def _merge(self, early: Path, log: Path) -> None:
        with contextlib.suppress(OSError):
            if not log.exists():
                early.rename(log)
                return
            with early.open("rb") as source, log.open("ab") as target:
                shutil.copyfileobj(source, target)
            early.unlink()


def tail_of(path: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _CHUNK))
            return file.read(_CHUNK).decode(errors="replace")
    except OSError:
        return ""


def _write_plainly(source: _Source, data: bytes) -> None:
    """Write the job's output as it came: it must reach the terminal whatever else fails."""
    with contextlib.suppress(OSError):
        os.write(2 if source.to_stderr else 1, data)
