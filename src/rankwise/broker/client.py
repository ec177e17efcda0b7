"""`rankwise.remote`: submits tasks to the workers of a queue, and settles each future once, however often its answer comes.

When no answer comes for a while, the same message is sent again. Workers know its id and run it once; it helps when a broker lost messages
(a Redis that crashed loses its last second).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import uuid
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.broker import connecting
from rankwise.broker.blobs import Blobs
from rankwise.broker.messages import BINARY, Body, Reply, Request, read_reply, write_request
from rankwise.broker.oip_tensors import as_array, as_tensor
from rankwise.broker.stores import RedisStore
from rankwise.errors import RankwiseError, UsageError
from rankwise.findings import Finding
from rankwise.pool.errors import PoolError, deadline_exceeded, pool_closed, pool_elsewhere

_BY_NAME = {kind.__name__: kind for kind in PoolError.__subclasses__()}
_REPLY_S = 3600
_LOOK_S, _MOST_RESENT = 0.5, 100
_GRACE_S = 2.0  # after a deadline: time for the worker's own answer that it has passed
_LIVE: weakref.WeakSet[Remote] = weakref.WeakSet()


@dataclass
class Waiting:
    future: Future[Any]
    body: Body
    priority: int
    as_tensors: bool
    sent: float
    model: str = ""
    deadline_s: float | None = None
    deadline: float | None = None
    sends: int = 0  # each wait for an answer is twice as long as the last, so that the queue does not fill with copies while no worker runs


class Remote:
    """A client of `rankwise worker` at this broker; usable from any thread, and `with` closes it. `files` is a folder that workers
    share, for tensors over `large_bytes`."""

    def __init__(
        self,
        broker: str,
        *,
        queue: str = connecting.TASKS,
        content_type: str = BINARY,
        resend_s: float = 60.0,
        files: str | Path | None = None,
        large_bytes: int = 1 << 20,
    ) -> None:
        self._broker, self._queue, self._content_type, self._resend_s = broker, queue, content_type, resend_s
        connecting.check_address(broker)
        redis = RedisStore(broker, queue, 0, tries=20).redis if connecting.is_redis(broker) and files is None else None
        self._blobs = Blobs(redis, files, large_bytes)
        self._reply_to = f"rankwise.replies.{uuid.uuid4().hex}"
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._waiting: dict[str, Waiting] = {}
        self._closed, self._why_closed = threading.Event(), pool_closed
        self._connection: Any = None
        try:
            self._connect()
        except Exception as error:  # of whichever client library
            connecting.release(self._connection, is_broken=True)
            raise connecting.cannot_reach(broker, error) from error
        self._reader = threading.Thread(target=self._read, name="rankwise-remote", daemon=True)
        self._reader.start()
        _LIVE.add(self)

    def submit(
        self,
        model: str,
        *inputs: Any,
        deadline_s: float | None = None,
        priority: int = 0,
        seed: int | None = None,
        id: str | None = None,
    ) -> Future[Any]:
        """As `Pool.submit`. A task that any client submits again under the same `id` gets the first answer."""
        if self._closed.is_set():
            raise self._why_closed()
        if not inputs or type(priority) is not int or not 0 <= priority <= 9:
            raise UsageError("a task needs at least one input, and a priority from 0 to 9")
        try:
            arrays = tuple([as_array(value) for value in inputs])
        except TypeError as error:
            raise UsageError(
                f"an input of model {model!r} cannot be sent", why=str(error), next=("give tensors, arrays, numbers or texts",)
            ) from None
        deadline = time.time() + deadline_s if deadline_s is not None else None
        request = Request(id or uuid.uuid4().hex, model, arrays, deadline, priority, seed)
        body = write_request(request, self._content_type, self._blobs.keep)
        as_tensors = any(hasattr(value, "detach") for value in inputs)
        waiting = Waiting(Future(), body, priority, as_tensors, time.time(), model, deadline_s, deadline)
        with self._lock:
            if request.id in self._waiting:
                return self._waiting[request.id].future
            self._waiting[request.id] = waiting
        try:
            self._send(request.id, waiting)
        except BaseException:
            with self._lock:
                self._waiting.pop(request.id, None)
            raise
        return waiting.future

    async def asubmit(self, model: str, *inputs: Any, **options: Any) -> Any:
        """`submit` for asyncio: sends the task in a thread and awaits the result."""
        future = await asyncio.to_thread(self.submit, model, *inputs, **options)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Close without waiting: tasks without an answer fail with PoolClosed, although workers still run them."""
        self._closed.set()
        self._reader.join(10)
        with self._sending:
            connecting.release(self._connection)
        with self._lock:
            left, self._waiting = self._waiting, {}
        for waiting in left.values():
            _settle(waiting.future, None, pool_closed())

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget_after_fork(self) -> None:
        """In a forked child, fail all tasks and use nothing of the parent's: closing the connection would end it for the parent, no thread
        reads answers here, and the locks may be held by threads that were not forked."""
        self._lock, self._sending, self._closed = threading.Lock(), threading.Lock(), threading.Event()
        self._closed.set()
        self._why_closed, self._connection = pool_elsewhere, None
        left, self._waiting = self._waiting, {}
        for waiting in left.values():
            waiting.future._condition = threading.Condition()
            waiting.future._done_callbacks = []  # type: ignore[attr-defined,unused-ignore]  # the parent's
            _settle(waiting.future, None, pool_elsewhere())

    # ---- sending, on a connection of its own

    def _connect(self) -> None:
        self._connection = connecting.connect(self._broker)
        self._connection.ensure_connection(max_retries=3, interval_start=0.2, interval_step=0.2)
        self._producer = self._connection.Producer()
        connecting.task_queue(self._queue)(self._producer.channel).declare()
        connecting.plain_queue(self._reply_to, _REPLY_S)(self._producer.channel).declare()

    def _send(self, id: str, waiting: Waiting, tries: int = 20) -> None:
        with self._sending:
            for left in reversed(range(tries)):
                try:
                    if self._connection is None:
                        self._connect()
                    waiting.sent, waiting.sends = time.time(), waiting.sends + 1
                    connecting.publish(
                        self._producer, waiting.body, self._queue, priority=waiting.priority, correlation_id=id, reply_to=self._reply_to
                    )
                    return
                except Exception as error:  # each client library has its own classes; the broker may be restarting
                    connecting.release(self._connection, is_broken=True)
                    self._connection = None
                    if not left or self._closed.wait(0.5):
                        raise connecting.cannot_reach(self._broker, error) from error

    # ---- reading, in a thread of its own

    def _read(self) -> None:
        look_at = 0.0
        while not self._closed.is_set():
            connection, is_broken = connecting.connect(self._broker, connecting.HEARTBEAT_S), True
            try:
                connection.ensure_connection(max_retries=3, interval_start=0.2)
                queue = connecting.plain_queue(self._reply_to, _REPLY_S)
                no_ack = connecting.is_redis(self._broker)  # there, the only reader needs not
                with connecting.consumer_of(connection, queue, self._on_message, no_ack):
                    while not self._closed.is_set():
                        with contextlib.suppress(TimeoutError):
                            connection.drain_events(timeout=0.2)
                        if time.monotonic() >= look_at:
                            look_at = time.monotonic() + _LOOK_S
                            connection.heartbeat_check()
                            self._expire()
                            self._resend()
                is_broken = False
            except Exception:  # as above
                self._closed.wait(0.5)
            finally:
                connecting.release(connection, is_broken)

    def _on_message(self, message: Any) -> None:
        if not connecting.is_redis(self._broker):
            message.ack()
        with self._lock:
            waiting = self._waiting.pop(str(message.properties.get("correlation_id")), None)
        if waiting is None:
            return  # it was answered before
        try:
            reply = read_reply(connecting.body_of(message), self._blobs.fetch)
            _settle(waiting.future, *_value_of(reply, waiting.as_tensors))
            self._blobs.drop(reply.refs)
        except Exception as error:  # an answer that cannot be read fails its task
            _settle(waiting.future, None, error)

    def _expire(self) -> None:
        """Fail tasks past their deadline, since there may be no worker to do so, and forget tasks that were cancelled here."""
        now = time.time()
        with self._lock:
            over = {key: it for key, it in self._waiting.items() if it.future.cancelled() or (it.deadline and now > it.deadline + _GRACE_S)}
            for key in over:
                del self._waiting[key]
        for waiting in over.values():
            _settle(waiting.future, None, deadline_exceeded(waiting.model, waiting.deadline_s or 0.0, was_running=False))

    def _resend(self) -> None:
        now = time.time()
        with self._lock:
            late = [(key, it) for key, it in self._waiting.items() if now - it.sent > self._resend_s * 2 ** max(0, it.sends - 1)]
        for key, waiting in late[:_MOST_RESENT]:  # a limited number, because this thread has answers to read
            with contextlib.suppress(Exception):  # the next round tries again
                self._send(key, waiting, tries=1)


remote = Remote


def _forget_in_child() -> None:
    for client in list(_LIVE):
        client.forget_after_fork()


os.register_at_fork(after_in_child=_forget_in_child)


def _value_of(reply: Reply, as_tensors: bool) -> tuple[Any, BaseException | None]:
    if reply.error is not None:
        finding = Finding.from_dict(reply.error.get("finding", {}))
        return None, _BY_NAME.get(str(reply.error.get("type")), RankwiseError if finding.code == "RW805" else PoolError)(finding)
    torch = sys.modules.get("torch") if as_tensors else None
    outputs = {name: as_tensor(array, torch) if torch is not None else array for name, array in reply.outputs.items()}
    if reply.structure == "dict":
        return outputs, None
    return (list(outputs.values()) if reply.structure == "list" else next(iter(outputs.values()))), None


def _settle(future: Future[Any], value: Any, error: BaseException | None) -> None:
    if not future.cancelled() and future.set_running_or_notify_cancel():
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
