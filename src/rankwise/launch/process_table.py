"""Reads the process table from /proc: cheap enough to do every second."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rankwise.evidence.records import FileLock, OpenConnection, Sample

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_READ = {"x86_64": "0", "aarch64": "63"}.get(os.uname().machine, "")  # the number of read() in /proc/PID/syscall
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    state: str
    cpu_s: float
    rss: int


def read_table(root: int, unrelated: set[int] | None = None) -> dict[int, Process]:
    """All descendants of a process (zombies included), by pid.

    `unrelated` are processes known not to be descendants, which are skipped; this call adds those it finds. A process is a descendant
    from its start or never, so the caller only has to clear the set before pids are used again.
    """
    unrelated = set() if unrelated is None else unrelated
    table: dict[int, Process] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in unrelated:
            continue
        process = _read_stat(int(entry))
        if process is not None:
            table[process.pid] = process
            children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        found[pid] = table[pid]
        queue += children.get(pid, ())
    for pid, process in table.items():
        if pid not in found and (process.parent in table or process.parent in unrelated):  # else its parent just ended: it may be ours
            unrelated.add(pid)
    return found


def read_sample(process: Process) -> Sample:
    """One process in more detail: what shows whether it makes progress."""
    status = _fields(f"/proc/{process.pid}/status")
    io = _fields(f"/proc/{process.pid}/io")
    return Sample(
        time_ns=time.time_ns(),
        state=process.state,
        cpu_s=process.cpu_s,
        rss=process.rss,
        switches=_number(status, "voluntary_ctxt_switches") + _number(status, "nonvoluntary_ctxt_switches"),
        read_bytes=_number(io, "rchar"),
        written_bytes=_number(io, "wchar"),
        swap=_number(status, "VmSwap") * 1024,
        wchan=_sleeps_in(process.pid),
    )


def _sleeps_in(pid: int) -> str:
    """The kernel function the main thread sleeps in; waits on terminals and on sockets share one, so terminals get the name n_tty_read."""
    wchan = _read(f"/proc/{pid}/wchan").strip("0 \n")
    return "n_tty_read" if wchan == "wait_woken" and _reads_terminal(pid) else wchan


def _reads_terminal(pid: int) -> bool:
    number, fd, *_ = (*_read(f"/proc/{pid}/syscall").split(), "", "")
    if number != _READ or not fd.startswith("0x"):
        return False
    try:
        return os.readlink(f"/proc/{pid}/fd/{int(fd, 16)}").startswith(_TERMINALS)
    except OSError:
        return False


def command_of(pid: int) -> list[str]:
    try:
        return [part.decode(errors="replace") for part in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if part]
    except OSError:
        return []


def script_of(command: list[str], cwd: str) -> str:
    """The script a Python or shell command runs, as an absolute path; empty if it runs none."""
    words = iter(command[1:])
    for word in words:
        if word in ("-c", "-m"):
            return ""
        if word in ("-X", "-W"):
            next(words, "")
        elif not word.startswith("-"):
            path = os.path.join(cwd, word)
            return os.path.normpath(path) if os.path.isfile(path) else ""
    return ""


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    return bool(int(_fields(f"/proc/{pid}/status").get("SigCgt", "0"), 16) >> (number - 1) & 1)


def cwd_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def environment_of(pid: int, wanted: tuple[str, ...]) -> dict[str, str]:
    """The wanted variables a process was started with."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.decode(errors="replace").split("=", 1) for part in data.split(b"\0") if b"=" in part)
    return {name: value for name, value in pairs if name in wanted}


def connections_of(pids: set[int]) -> dict[int, tuple[OpenConnection, ...]]:
    """Open TCP connections of these processes; the other end is named where it belongs to one of them."""
    import psutil

    by_pid: dict[int, list[tuple[str, str, str]]] = {}
    end_of: dict[str, int] = {}
    for pid in pids:
        try:
            for link in psutil.Process(pid).net_connections("tcp"):
                local = f"{link.laddr.ip}:{link.laddr.port}" if link.laddr else ""
                remote = f"{link.raddr.ip}:{link.raddr.port}" if link.raddr else ""
                by_pid.setdefault(pid, []).append((local, remote, link.status))
                if link.status == "ESTABLISHED":
                    end_of[local] = pid
        except (psutil.Error, OSError):
            continue
    return {
        pid: tuple(OpenConnection(local, remote, status, end_of.get(remote)) for local, remote, status in by_pid.get(pid, ()) if remote)
        for pid in pids
    }


def file_locks(pids: set[int]) -> list[FileLock]:
    """File locks that one of these processes waits for, and the process that holds each (from /proc/locks)."""
    holders: dict[str, int] = {}
    found: list[FileLock] = []
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        waiting = len(fields) > 1 and fields[1] == "->"
        if waiting:
            fields.pop(1)
        if len(fields) < 6:
            continue
        pid, inode = int(fields[4]), fields[5]
        if not waiting:
            holders[inode] = pid
        elif pid in pids:
            found.append(FileLock(_path_of_inode(pid, inode), pid, holders.get(inode)))
    return found


def _path_of_inode(pid: int, inode: str) -> str:
    number = int(inode.rsplit(":", 1)[-1])
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if os.stat(path).st_ino == number:
                return os.readlink(path)
    except OSError:
        pass
    return ""


def _read_stat(pid: int) -> Process | None:
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    state, parent, *fields = text.rpartition(")")[2].split()
    return Process(pid, int(parent), state, cpu_s=(int(fields[9]) + int(fields[10])) / _TICK, rss=int(fields[19]) * _PAGE)


def _fields(path: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in _read(path).splitlines())}


def _read(path: str) -> str:
    """A file of /proc, empty if it is gone or not ours to read; without file objects, because hundreds are read each second.

    Any other failure (no descriptor, no memory) is raised: a process that we could not look at has not ended.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    try:
        return os.read(fd, 1 << 14).decode(errors="replace")
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EACCES, errno.EPERM, errno.EINVAL):  # the process ended in between, or is not ours
            raise
        return ""
    finally:
        os.close(fd)


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "0").split()
    return int(text[0]) if text and text[0].isdigit() else 0
