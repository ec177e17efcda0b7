"""Reads the workers' packets: the caller that waits for a result reads itself, otherwise a thread does, which also acts when time is up.

A caller that reads for itself saves two switches of threads. So the thread stops listening to a worker as soon as a task is sent there;
it waits a moment for the caller, and reads the answer itself if the caller does not come."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from rankwise.pool.schedule.state import WorkerState, monotonic, monotonic_ns
from rankwise.pool.schedule.tasks import Task
from rankwise.pool.stats import answer, open_window
from rankwise.pool.transport.connection import WorkerHandle, wait_for, watch_for_answer

log = logging.getLogger("rankwise.pool")
BUSY_TICK_S, IDLE_TICK_S = 0.1, 0.5
# How long to wait for a caller to read its answer: if the last one came, and if it did not (callbacks, asyncio).
_LONG_GRACE_NS, _SHORT_GRACE_NS = 2_000_000, 20_000
_WINDOWS = itertools.count(1)
_LOOK_UP_S = 0.1  # as long as a read waits
_PACKETS = 64  # packets of one worker that are read before the others get their turn


class Events(Protocol):
    """The methods that the listener calls when something happens, or when it is time."""

    @property
    def is_closed(self) -> bool: ...
    @property
    def is_busy(self) -> bool: ...

    def take_answer(self, worker: WorkerState, message: tuple[Any, ...]) -> bool:
        """The answer to a task of the fast path; False if `take_message` has to take it."""
        ...

    def take_message(self, worker: WorkerState, message: tuple[Any, ...] | None) -> None: ...
    def tick(self, now: float) -> None: ...
    def next_moment(self, latest: float) -> float: ...
    def on_time(self, now: float) -> None: ...
    def go_on(self, now: float) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def give_up(self, why: str) -> None: ...
    def tear_down(self) -> None: ...


class Listener:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[], object]] = {}  # by descriptor: what to call when there is something to read
        self._packets = select.epoll()  # the workers' sockets, apart: an asyncio loop may watch this one instead of this thread
        self.watch(self._packets.fileno(), self._read_arrived)
        self._reader: LoopReader | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._grace = Timer()
        self._grace_lock = threading.Lock()
        self._graces = 0  # how often the grace was set
        self.watch(self._wake, partial(os.eventfd_read, self._wake))
        self.watch(self._grace.fd, self._end_grace)
        self._window = window = open_window(next(_WINDOWS))
        if window is not None:
            self.watch(window.fileno(), lambda: answer(window, events.stats()))
        self._workers: dict[int, WorkerState] = {}  # by descriptor
        self._helpers: dict[int, list[WorkerState]] = {}  # by thread: the workers whose packets this caller reads
        self._sleeps_until = 0.0
        self._grace_ns = _LONG_GRACE_NS
        self._thread = threading.Thread(target=self._loop, name="rankwise-pool", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, fd: int, act: Callable[[], object]) -> None:
        """Call `act` in the listener's thread whenever the descriptor has something to read."""
        if fd not in self._acts:
            self._acts[fd] = act
            self._epoll.register(fd, select.EPOLLIN)

    def forget(self, fd: int) -> None:
        if self._acts.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def add(self, worker: WorkerState) -> None:
        self._workers[worker.handle.sock.fileno()] = worker
        self._arm(worker.handle)

    def remove(self, worker: WorkerState) -> None:
        self.disarm(worker.handle)
        self._workers.pop(worker.handle.sock.fileno(), None)
        self.forget(worker.handle.pidfd)

    def expect(self, handle: WorkerHandle) -> None:
        """Something was sent to this worker, so a thread has to read the answer."""
        if not handle.is_armed and (self._reader is None or not self._has_armed(handle)):
            self._give_grace()

    def _has_armed(self, handle: WorkerHandle) -> bool:
        """Watch for the worker's packets; False if a thread is reading them."""
        if not handle.reading.acquire(blocking=False):
            return False
        try:
            self._arm(handle)
        finally:
            handle.reading.release()
        return True

    def read_in(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Make this loop, in whose thread we are, read the answers until the returned function is called there. One loop at a time."""
        if self._reader is not None:
            return lambda: None
        self.forget(self._packets.fileno())
        self._reader = LoopReader(loop, self._packets.fileno(), self._read_arrived, self._events)
        self._take_over()

        def stop() -> None:
            if self._reader is not None:
                self._reader.stop()
                self._reader = None
                if self._wake < 0:
                    self._packets.close()
                    return
                try:
                    self.watch(self._packets.fileno(), self._read_arrived)
                    self.wake()
                except (OSError, ValueError):  # closed meanwhile
                    pass

        return stop

    def wake_by(self, moment: float | None) -> None:
        if moment is None:
            return
        if self._reader is not None:
            self._reader.wake_by(moment)
        elif moment < self._sleeps_until:
            self.wake()

    def plans_soon(self) -> bool:
        """Whether planning can wait: workers are busy, and this thread's loop calls `go_on` when it has taken in all requests."""
        return self._reader is not None and self._events.is_busy and self._reader.plans_soon()

    def wake(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except (OSError, ValueError):  # closed
            pass

    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def join(self) -> None:
        if not self.is_this_thread():
            self._thread.join()

    def help(self, task: Task, timeout: float | None) -> float | None:
        """In the caller's thread: read what the workers send until the task is over. Returns what is left of the timeout."""
        end, me = None if timeout is None else monotonic() + timeout, threading.get_ident()
        if self._reader is not None:
            self._reader.plan_now()
        while not task.is_over:
            worker, graces = task.worker, self._graces
            if worker is None or not worker.handle.reading.acquire(blocking=False):
                break
            self._helpers[me] = workers = [worker]
            try:
                self._take_others(workers)
                if not task.brisk:
                    self._need_no_grace(graces)
                self._grace_ns = _LONG_GRACE_NS
                for taken in workers:
                    self.disarm(taken.handle)
                if len(workers) > 1:
                    self._read_several(list(workers), task, end)
                else:
                    self._read_until_over(worker, task, end)
            finally:
                is_one_of_several = len(workers) > 1
                self.let_go()
                if is_one_of_several or worker.inflight:  # their callers come soon, or the other thread takes over
                    self._give_grace()
            if end is not None and monotonic() >= end:
                break
        return None if end is None else max(0.0, end - monotonic())

    def let_go(self) -> None:
        """Stop reading packets in this thread. A signal handler that closes the pool may have interrupted it while it read: what waits for
        the packets below does not go on before that handler returns."""
        workers = self._helpers.pop(threading.get_ident(), [])
        while workers:
            workers.pop().handle.reading.release()

    def _take_others(self, workers: list[WorkerState]) -> None:
        """Read other busy workers that no thread reads: one thread that reads them all is better than two in turns."""
        for other in list(self._workers.values()):
            if other is not workers[0] and other.inflight and not other.handle.is_gone and other.handle.reading.acquire(blocking=False):
                workers.append(other)

    def _give_grace(self) -> None:
        with self._grace_lock:
            self._graces += 1
            self._grace.set(self._grace_ns)

    def _need_no_grace(self, graces: int) -> None:
        """Do not wake the listener's thread: threads read all that is under way, unless something was sent since `graces`. Waking it for
        nothing, when its code has left the caches, takes longer than all the rest of a request."""
        with self._grace_lock:
            if graces == self._graces:
                self._grace.set(0)

    def disarm(self, handle: WorkerHandle) -> None:
        if handle.is_armed:
            handle.is_armed = False
            try:
                self._packets.unregister(handle.sock.fileno())
            except (OSError, ValueError):  # closed
                pass

    def close_own(self) -> None:
        """Close the descriptors, only once: other files soon have their numbers. The same holds in a forked child."""
        if self._wake < 0:
            return
        self._workers, self._acts = {}, {}
        wake, self._wake = self._wake, -1
        self._epoll.close()
        if self._reader is None:  # else `stop` closes it: until then, the loop would take the next file of this number for it
            self._packets.close()
        os.close(wake)
        self._grace.close()
        if self._window is not None:
            self._window.close()

    def close_after_fork(self) -> None:
        """Close in a forked child, where no loop runs."""
        self._reader = None
        self.close_own()

    def _arm(self, handle: WorkerHandle) -> None:
        if not handle.is_armed and not handle.is_gone and not self._events.is_closed:
            handle.is_armed = True
            with suppress(FileExistsError):  # a signal handler raised in `disarm`
                self._packets.register(handle.sock.fileno(), select.EPOLLIN)

    def _read_until_over(self, worker: WorkerState, task: Task, end: float | None) -> None:
        handle: WorkerHandle = worker.handle
        if task.brisk:
            watch_for_answer(handle.page, task.brisk, monotonic_ns())
        while not task.is_over and not handle.is_gone:
            is_soon = end is not None and end - monotonic() < _LOOK_UP_S
            if is_soon:
                wait_for(handle.sock.fileno(), _left_s(end))
            try:
                message = handle.receiver.receive(wait=not is_soon)
            except BlockingIOError:  # nothing came for a while: look whether there is still something to wait for
                if end is not None and monotonic() >= end:
                    return
                continue
            self._take_in(worker, message)
            if message is None:
                return

    def _read_several(self, workers: list[WorkerState], task: Task, end: float | None) -> None:
        by_fd = {worker.handle.sock.fileno(): worker for worker in workers}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while not task.is_over and not any(worker.handle.is_gone for worker in workers):
            for fd, _ in poll.poll(1000 * _left_s(end)):
                if not self._read_packets(by_fd[fd], 1):
                    return
            if task.worker not in workers or (end is not None and monotonic() >= end):  # the task waits again, or is with another worker
                return

    def _read_packets(self, worker: WorkerState, most: int = _PACKETS) -> bool:
        """Take in the packets that a worker has sent; False if it has closed its socket."""
        for _ in range(most):
            try:
                message = worker.handle.receiver.receive(wait=False)
            except BlockingIOError:
                return True
            self._take_in(worker, message)
            if message is None:
                return False
        return True

    def _take_in(self, worker: WorkerState, message: Any) -> None:
        if message is None or message[0] != "one" or not self._events.take_answer(worker, message):
            self._events.take_message(worker, message)

    def _loop(self) -> None:
        events, next_tick = self._events, 0.0
        try:
            while not events.is_closed:
                try:
                    now = monotonic()
                    if now >= next_tick:
                        self._take_over()
                        self._read_arrived()  # also if a loop reads: its thread may be busy or blocked
                        events.tick(now)
                        next_tick = now + (BUSY_TICK_S if events.is_busy else IDLE_TICK_S)
                    self._listen(next_tick)
                except Exception:
                    raise
                except BaseException:  # sys.exit in a callback, say: its future is settled, and others still wait
                    log.exception("a callback tried to end the thread that it ran in")
        except Exception:
            log.exception("the pool's listener failed")
            events.give_up("its listener failed, which is a fault of rankwise")
        finally:
            events.tear_down()
            self.close_own()

    def _listen(self, next_tick: float) -> None:
        self._sleeps_until = until = self._events.next_moment(next_tick) if self._reader is None else next_tick
        for fd, _ in self._epoll.poll(max(0.0, until - monotonic())):
            act = self._acts.get(fd)
            if act is not None:  # the act before it may have removed it
                act()
        self._events.on_time(monotonic())

    def _end_grace(self) -> None:
        self._grace.clear()
        self._take_over()

    def _take_over(self) -> None:
        """Read the answers of workers whose callers have not come for them."""
        for worker in list(self._workers.values()):
            if worker.inflight and not worker.handle.is_armed and self._has_armed(worker.handle):
                self._grace_ns = _SHORT_GRACE_NS

    def _read_arrived(self) -> None:
        for fd, _ in self._packets.poll(0):
            worker = self._workers.get(fd)
            if worker is None or not worker.handle.reading.acquire(blocking=False):
                continue
            try:
                # A worker that starts stays watched: it reports unasked, and this event may have been for a dead one with its descriptor.
                # A loop goes on watching, which costs it nothing.
                if not self._read_packets(worker) or (worker.is_ready and not worker.inflight and self._reader is None):
                    self.disarm(worker.handle)
            finally:
                worker.handle.reading.release()


def _left_s(end: float | None) -> float:
    """How long to wait before the next look whether there is still something to wait for."""
    return _LOOK_UP_S if end is None else max(0.0, min(_LOOK_UP_S, end - monotonic()))


class LoopReader:
    """An asyncio loop that reads the workers' answers itself, because its thread waits for them. Exists only for speed: the
    listener's thread would have to wake the loop for each answer, and both would fight for the interpreter; under load that takes longer
    than the rest of a request (1,412 answers a second instead of 1,107 on two cores, 8 connections).

    Made in the loop's own thread. Calls `read` when a packet is there, and wakes up for deadlines and for batches that have waited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, read: Callable[[], None], events: Events) -> None:
        self._loop, self._fd, self._read_arrived, self._events = loop, fd, read, events
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._is_to_plan = False
        loop.add_reader(fd, self._read)

    def wake_by(self, moment: float) -> None:
        if threading.get_ident() == self._thread:
            self._set_timer(moment)
        else:
            try:
                self._loop.call_soon_threadsafe(self._set_timer, moment)
            except RuntimeError:  # the loop is closed
                pass

    def plans_soon(self) -> bool:
        """Whether the loop will plan soon, so that requests that arrive together share a batch and a message. From any thread."""
        if threading.get_ident() != self._thread:
            return False
        if not self._is_to_plan:
            self._is_to_plan = True
            self._loop.call_soon(self._plan)
        return True

    def plan_now(self) -> None:
        """This thread is about to wait for a result. If it is the loop's own, nothing would be planned meanwhile, so plan now."""
        if self._is_to_plan and threading.get_ident() == self._thread:
            self._events.go_on(monotonic())

    def stop(self) -> None:
        """Stop reading; called in the loop's own thread."""
        self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = -math.inf

    def _plan(self) -> None:
        self._is_to_plan = False
        self._events.go_on(monotonic())
        self._set_timer(self._events.next_moment(math.inf))

    def _read(self) -> None:
        self._read_arrived()
        self._set_timer(self._events.next_moment(math.inf))

    def _set_timer(self, moment: float) -> None:
        if moment < self._rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._rings_at = moment
            self._timer = self._loop.call_later(max(0.0, moment - monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        self._events.on_time(monotonic())
        self._set_timer(self._events.next_moment(math.inf))


_libc = ctypes.PyDLL(None)  # keeps the GIL: releasing it would take longer than the calls
_CLOEXEC, _NONBLOCK = 0o2000000, 0o4000


class Timer:
    """Wakes an epoll after some microseconds, in which a caller may read an answer itself; an epoll's own timeout counts in milliseconds.
    Exists only for speed. Python has a timerfd of its own from 3.13 on."""

    def __init__(self) -> None:
        self.fd = int(ctypes.CDLL(None, use_errno=True).timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC | _NONBLOCK))
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._spec = (ctypes.c_long * 4)()  # an interval, and the time until it fires: each in seconds and nanoseconds
        self._pointer = ctypes.byref(self._spec)

    def set(self, nanoseconds: int) -> None:
        """Fire once, so many nanoseconds from now (under a second; 0: never), instead of when it was set to fire."""
        self._spec[3] = nanoseconds
        _libc.timerfd_settime(self.fd, 0, self._pointer, None)

    def clear(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)
