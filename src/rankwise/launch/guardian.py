"""Stands between launcher and job: adopts every orphan, reports every end, and leaves nothing behind, even if the launcher is killed.

Run by path in an isolated interpreter: stdlib only, nothing of rankwise. Arguments: control fd, status fd, folder to remove, command…
"""

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main(argv: list[str]) -> int:
    control, status = int(argv[1]), int(argv[2])
    folder, command = argv[3], argv[4:]
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ignored = [int(number) for number in _IGNORED if signal.getsignal(number) == signal.SIG_IGN]  # as nohup does: the job inherits it
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    main_pid = start(command, status, (control, status, wake_read, wake_write), ignored)
    if main_pid is None:
        return 127
    for fd in (0, 1, 2):  # the job alone keeps the launcher's pipes open
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    while True:
        try:
            if not guard_once(control, status, wake_read):
                shutil.rmtree(folder, ignore_errors=True)
                return 0
        except (OSError, MemoryError, ValueError):  # go on without descriptors or memory: nothing else would end the job
            time.sleep(0.2)


def guard_once(control: int, status: int, wake_read: int) -> bool:
    """Wait for an event and report it; False once the launcher is gone and all processes of the job have been ended."""
    ready, _, _ = select.select([control, wake_read], [], [], 1.0)
    if wake_read in ready:
        drain(wake_read)
    reap(status)
    if control not in ready:
        return True
    word = os.read(control, 64)
    end_everything(status, grace_s=float(word.split()[0]) if word else 0.0)
    if word:
        reap(status)  # report what died after the last look: the launcher stops reading at "all_gone"
        tell(status, {"event": "all_gone"})
    return bool(word)


def start(command: list[str], status: int, private: tuple[int, ...], ignored: list[int]) -> "int | None":
    """Fork and exec, with default signal handlers and none of our descriptors; an exec that fails is reported."""
    read_end, write_end = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        tell(status, {"event": "not_started", "error": f"{error.errno} {error.strerror}"})
        return None
    if pid == 0:
        try:
            for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for fd in (*private, read_end):
                os.close(fd)
            os.setpgid(0, 0)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(write_end, f"{error.errno} {error.strerror}".encode())
        os._exit(127)
    os.close(write_end)
    failure = os.read(read_end, 300).decode()
    os.close(read_end)
    if failure:
        os.waitpid(pid, 0)
        tell(status, {"event": "not_started", "error": failure})
        return None
    tell(status, {"event": "started", "pid": pid})
    return pid


def reap(status: int) -> None:
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        tell(status, {"event": "ended", "pid": pid, "code": os.waitstatus_to_exitcode(code), "t": time.time_ns()})


def end_everything(status: int, grace_s: float) -> None:
    """SIGTERM, a moment of grace, then SIGKILL until no descendant is left; children born meanwhile included."""
    if grace_s > 0:
        send(descendants(), signal.SIGCONT)
        send(descendants(), signal.SIGTERM)
        wait_gone(status, grace_s)
    deadline = time.monotonic() + 20
    while descendants() and time.monotonic() < deadline:
        send(descendants(), signal.SIGKILL)
        wait_gone(status, 0.1)


def wait_gone(status: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reap(status)
        if not descendants():
            return
        time.sleep(0.02)


def descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rsplit(b")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if fields[0] != b"Z":
                parents.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def tell(status: int, event: dict[str, object]) -> None:
    try:
        os.write(status, json.dumps(event).encode() + b"\n")
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise


def drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv))
