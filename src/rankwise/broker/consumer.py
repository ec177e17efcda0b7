"""`rankwise worker`: takes messages from a queue, runs them in a pool, and answers each exactly once, as far as its sender can see.

A message is acknowledged only after its answer is stored and sent. If anything fails before that, the broker delivers the message again,
and it gets the answer that is already stored. A task that another worker has claimed waits until that worker has answered or is dead.

One thread reads from the broker and acknowledges (kombu wants both on one connection), a few others store and send, one tells the store
that this worker lives. All of them may hang at a broker that does not answer, so at the end they are waited for only as long as `drain_s`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rankwise.broker import connecting
from rankwise.broker.blobs import Blobs
from rankwise.broker.messages import Body, Malformed, Reply, Request, TensorMissing, find_id, outputs_of, read_request, write_reply
from rankwise.broker.oip_tensors import raw_of
from rankwise.broker.stores import Store
from rankwise.causes import load_cause
from rankwise.errors import RankwiseError, UsageError
from rankwise.pool import Pool
from rankwise.pool.errors import DeadlineExceeded, Quarantined
from rankwise.protocol import TensorSpec, datatype_of

log = logging.getLogger("rankwise.worker")

MAX_TRIES = 10  # deliveries without an answer: such a message probably ends the worker's own process
_BUSY_S, _IDLE_S = 0.005, 0.5  # how long to wait for the next message before looking for answers to acknowledge
_POISON = {"RW804", "RW806"}  # an input that kills workers, one that never ends
_REPLY_S = 3600
_LEAVE_S = 2.0  # time to close the connections
_SENDERS = 4  # threads that wait for the broker's and the store's disk, which write several answers as fast as one
_SEND_TRIES = 240  # half a second apart: longer than a broker takes to restart
_RETRY_S = 0.5
_LOOK_S = 1.0  # between two signs of life, and between two looks at a task that another worker has claimed

Send = partial[None]  # `_answer` or `_answer_again` with all arguments, the job first, except the producer


@dataclass
class QueueJob:
    """One task, with all messages that ask for it."""

    id: str
    content_type: str
    messages: list[tuple[int, Any]]  # each with the number of the connection it came over
    reply_to: set[str] = field(default_factory=set)
    refs: tuple[str, ...] = ()
    fingerprint: str = ""  # of the request: a stored answer belongs to this, since two requests may have one id by mistake
    is_kept: bool = True  # whether its answer is stored under its id
    is_dead_letter: bool = False  # whether its message was put into the queue of dead letters


@dataclass(frozen=True)
class WorkerOptions:
    broker: str
    queue: str
    prefetch: int = 64
    drain_s: float = 30.0


class BrokerWorker:
    def __init__(
        self, pool: Pool, store: Store, blobs: Blobs, options: WorkerOptions, outputs: Mapping[str, Sequence[TensorSpec]] | None = None
    ) -> None:
        self._pool, self._store, self._blobs, self._options = pool, store, blobs, options
        self._outputs = outputs or {}  # the declared outputs, by the model's name
        self._lock = threading.Lock()
        self._jobs: dict[str, QueueJob] = {}  # by id, until there is an answer
        self._later: deque[tuple[float, QueueJob, Request, bool]] = deque()  # tasks that others have claimed, with the time to look again
        self._given_up: list[str] = []  # ids whose claim this worker gives up, until the store knows
        self._open = 0  # jobs whose answer is not sent
        self._answered: list[tuple[int, Any]] = []  # messages to acknowledge
        self._outbox: queue.SimpleQueue[Send | None] = queue.SimpleQueue()
        self._stopping, self._leaving = threading.Event(), threading.Event()
        self._number = 0  # the number of the present connection
        self._warned_of: set[str] = set()  # warnings that were logged since the last connection
        self.answered = 0

    def stop(self) -> None:
        """Take no more messages; finish the tasks that are here."""
        self._stopping.set()

    def run(self) -> int:
        """Run until `stop`, and reconnect after every loss of the connection. Returns the number of messages left with the broker."""
        reader = threading.Thread(target=self._read, name="rankwise-messages", daemon=True)
        senders = [threading.Thread(target=self._send_all, name=f"rankwise-replies-{i}", daemon=True) for i in range(_SENDERS)]
        signer = threading.Thread(target=self._sign, name="rankwise-signs", daemon=True)
        for thread in (signer, reader, *senders):
            thread.start()
        self._stopping.wait()
        end = time.monotonic() + self._options.drain_s
        while time.monotonic() < end and (self._has_work() or reader.is_alive()):
            time.sleep(_BUSY_S)
        left = self._open + len(self._answered)
        self._leaving.set()
        for _ in senders:
            self._outbox.put(None)
        for thread in (reader, *senders, signer):
            thread.join(max(_LEAVE_S, end - time.monotonic()))
        return left

    # ---- the reading thread

    def _read(self) -> None:
        while not self._stopping.is_set():
            self._number += 1
            connection, is_broken = connecting.connect(self._options.broker, connecting.HEARTBEAT_S), True
            try:
                self._consume(connection)
                is_broken = False
            except Exception as error:  # from the broker, the store, or a message that kombu itself cannot read
                self._warn_once("connecting again after", error)
                self._stopping.wait(_RETRY_S)
            finally:
                connecting.release(connection, is_broken)

    def _consume(self, connection: Any) -> None:
        connection.ensure_connection(max_retries=None, interval_start=0.2, interval_max=2, errback=self._check_not_stopping)
        if self._stopping.is_set():
            return
        with self._lock:
            self._answered.clear()  # messages of the last connection come again
        consumer = connecting.consumer_of(connection, connecting.task_queue(self._options.queue), self._on_message)
        consumer.qos(prefetch_count=self._options.prefetch)
        consumer.consume()
        log.info("reading from %s", self._options.queue)
        self._warned_of.clear()
        self._drain(connection, until=self._stopping.is_set)
        consumer.cancel()
        self._drain(connection, until=lambda: self._leaving.is_set() or not self._has_work())
        # Messages that are still held here go back to the queue when the connection is closed.

    def _drain(self, connection: Any, until: Callable[[], bool]) -> None:
        beat_at = 0.0
        while not until():
            try:
                connection.drain_events(timeout=_BUSY_S if self._has_work() else _IDLE_S)
            except TimeoutError:
                pass
            self._acknowledge()
            self._run_later()
            if time.monotonic() >= beat_at:
                connection.heartbeat_check()
                beat_at = time.monotonic() + 1
        self._acknowledge()

    def _check_not_stopping(self, error: Exception, interval: float) -> None:
        if self._stopping.is_set():
            raise ConnectionError("stopped while the broker was away") from error
        self._warn_once("the broker cannot be reached, trying again:", error)

    def _warn_once(self, what: str, error: Exception) -> None:
        """Log a warning once for each cause, until the broker is back."""
        if (text := f"{what} {type(error).__name__}: {error}") not in self._warned_of:
            log.warning("%s", text)
            self._warned_of.add(text)

    def _on_message(self, message: Any) -> None:
        if self._stopping.is_set():
            return  # it is not acknowledged, so it goes back to the queue
        job = QueueJob("", message.content_type or "", [(self._number, message)])
        with self._lock:
            self._open += 1
        try:
            body = connecting.body_of(message)
            job.reply_to = {name} if (name := connecting.check_reply_to(message.properties.get("reply_to"))) else set()
            request = read_request(body, self._blobs.fetch)
            job.id, job.refs, job.fingerprint = request.id, request.refs, _fingerprint(request)
            self._begin(job, request, bool(message.delivery_info.get("redelivered")))
        except RankwiseError as error:
            if isinstance(error, Malformed):
                job.id = str(message.properties.get("correlation_id") or "") or find_id(connecting.body_of(message))
            if isinstance(error, TensorMissing) and self._is_known(job):
                return  # its large inputs were deleted after the first answer
            self._refuse(job, error)
        except BaseException:  # the store cannot be reached: the message comes again
            with self._lock:
                self._open -= 1
                self._drop(job)
            self._given_up.append(job.id)
            raise

    def _is_known(self, job: QueueJob) -> bool:
        if not job.id or (stored := self._store.get(job.id)) is None:
            return False
        self._outbox.put(partial(self._answer_again, job, stored))
        return True

    def _begin(self, job: QueueJob, request: Request, redelivered: bool) -> None:
        with self._lock:
            running = self._jobs.get(request.id)
            if running is not None and running.fingerprint == job.fingerprint:
                running.messages += job.messages
                running.reply_to |= job.reply_to
                self._open -= 1
                return
        if running is not None:
            self._refuse(job, _other_content(job.id))
        else:
            self._run_or_wait(job, request, redelivered)

    def _refuse(self, job: QueueJob, error: BaseException) -> None:
        """Answer with an error, without storing it: the answer under this id belongs to another message."""
        job.is_kept = False
        self._outbox.put(partial(self._answer, job, None, error, ()))

    def _run_or_wait(self, job: QueueJob, request: Request, redelivered: bool) -> None:
        found = self._store.claim(job.id)
        if isinstance(found, bytes) and not _answers(found, job):
            self._refuse(job, _other_content(job.id))
            return
        with self._lock:
            self._jobs[job.id] = job
        if isinstance(found, bytes):
            self._outbox.put(partial(self._answer_again, job, found))
        elif not found:
            self._later.append((time.monotonic() + _LOOK_S, job, request, redelivered))
        elif redelivered and self._store.count_try(job.id) > MAX_TRIES:
            self._outbox.put(partial(self._answer, job, None, _kills_us(request), ()))
        else:
            self._run(job, request)

    def _run_later(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            self._run_or_wait(*self._later[0][1:])
            self._later.popleft()

    def _run(self, job: QueueJob, request: Request) -> None:
        left = request.deadline - time.time() if request.deadline is not None else None
        try:
            if left is not None and left <= 0:
                raise _too_late(request.model, -left)
            future = self._pool.submit(request.model, *request.inputs, deadline_s=left, priority=request.priority, seed=request.seed)
        except RankwiseError as error:
            self._outbox.put(partial(self._answer, job, None, error, ()))
        else:
            declared = self._outputs.get(request.model, ())
            future.add_done_callback(lambda done: self._outbox.put(partial(self._answer, job, done, None, declared)))

    def _acknowledge(self) -> None:
        with self._lock:
            answered, self._answered = self._answered, []
        for number, message in answered:
            if number == self._number:
                message.ack()

    def _has_work(self) -> bool:
        """Whether this worker has tasks of its own; tasks that others have claimed go back to the broker."""
        with self._lock:
            return bool(self._open > len(self._later) or self._answered)

    # ---- the thread that says that this worker lives

    def _sign(self) -> None:
        while not self._leaving.wait(_LOOK_S):
            try:
                self._store.sign()
                while self._given_up:
                    if self._given_up[0] not in self._jobs:  # else its message has come again
                        self._store.unclaim(self._given_up[0])
                    del self._given_up[0]
            except Exception as error:
                self._warn_once("the store does not hear that this worker lives:", error)
        try:
            self._store.leave()
        except Exception as error:
            self._warn_once("the store does not hear that this worker leaves:", error)

    # ---- the sending threads

    def _send_all(self) -> None:
        connection = None
        while (act := self._outbox.get()) is not None:
            for left in reversed(range(_SEND_TRIES)):
                try:
                    if connection is None:
                        connection = connecting.connect(self._options.broker)
                        producer = connection.Producer()
                    act(producer)
                    break
                except Exception as error:  # the broker or the store cannot be reached; nothing was acknowledged, so nothing is lost
                    log.warning("an answer could not be sent (%s: %s)", type(error).__name__, error)
                    connecting.release(connection, is_broken=True)
                    connection = None
                    if not left or self._leaving.wait(_RETRY_S):
                        self._forget(act)
                        break
        connecting.release(connection)

    def _forget(self, act: Send) -> None:
        """Forget a task whose answer could not be sent: it was not acknowledged, so the broker delivers it again."""
        with self._lock:
            self._drop(act.args[0])
            self._open -= not self._leaving.is_set()
        self._given_up.append(act.args[0].id)

    def _answer(
        self, job: QueueJob, future: Future[Any] | None, error: BaseException | None, declared: Sequence[TensorSpec], producer: Any
    ) -> None:
        reply = _reply_of(job, future, error, declared)
        finding = (reply.error or {}).get("finding", {})
        if not job.is_dead_letter and (finding.get("code") in _POISON or isinstance(error, UsageError)):
            self._to_dead_letters(job, finding, producer)
            job.is_dead_letter = True
        data = pack_body(write_reply(reply, job.content_type, self._blobs.keep), job.fingerprint)
        if job.id and job.is_kept and _answers(stored := self._store.put(job.id, data), job):
            data = stored
        self._answer_again(job, data, producer)
        self._blobs.drop(job.refs)

    def _answer_again(self, job: QueueJob, stored: bytes, producer: Any) -> None:
        """Answer with the stored answer."""
        with self._lock:
            self._drop(job)  # messages that come from now on find the answer in the store
            waiting = sorted(job.reply_to)
        for name in waiting:
            connecting.publish(producer, unpack_body(stored), name, correlation_id=job.id, expiration=_REPLY_S)
        with self._lock:
            self._open -= 1
            self.answered += 1
            self._answered += job.messages

    def _drop(self, job: QueueJob) -> None:
        """Remove a job, unless its id belongs to another one by now. Called with the lock held."""
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]

    def _to_dead_letters(self, job: QueueJob, finding: dict[str, Any], producer: Any) -> None:
        name = f"{self._options.queue}.dead"
        connecting.plain_queue(name)(producer.channel).declare()
        _, message = job.messages[0]
        connecting.publish(
            producer, connecting.body_of(message), name, headers={**message.headers, "rankwise-finding": json.dumps(finding)},
            correlation_id=job.id or None, reply_to=message.properties.get("reply_to"),
        )  # fmt: skip


def pack_body(body: Body, fingerprint: str = "") -> bytes:
    return json.dumps([body.content_type, body.header_length, fingerprint]).encode() + b"\n" + body.data


def unpack_body(data: bytes) -> Body:
    head, _, rest = data.partition(b"\n")
    content_type, length, *_ = json.loads(head)
    return Body(content_type, rest, length)


def _answers(stored: bytes, job: QueueJob) -> bool:
    """Whether a stored answer is for this job's request. An answer without a fingerprint counts, because its id is the same."""
    _, _, *fingerprint = json.loads(stored.partition(b"\n")[0])
    return fingerprint in ([], [""], [job.fingerprint])


def _fingerprint(request: Request) -> str:
    """A hash of all that the answer depends on: not of the deadline, nor of how or where the inputs were written."""
    found = hashlib.blake2b(repr((request.model, request.seed)).encode("utf-8", "surrogatepass"), digest_size=16)
    for array in request.inputs:
        raw = raw_of(array)
        found.update(repr((datatype_of(array), array.shape, len(raw))).encode())
        found.update(raw)
    return found.hexdigest()


def _other_content(id: str) -> UsageError:
    why = "what comes again under an id is answered from the store, which would be the answer to the other message"
    return UsageError(f"the id {id!r} has been used for a message that says something else", why=why, next=("give each task a new id",))


def _reply_of(job: QueueJob, future: Future[Any] | None, error: BaseException | None, declared: Sequence[TensorSpec]) -> Reply:
    if future is not None:
        error = future.exception()
        if error is None:
            try:
                outputs, structure = outputs_of(future.result(), declared)
                return Reply(job.id, outputs, structure)
            except TypeError as unwritable:
                error = unwritable
    assert error is not None
    if isinstance(error, RankwiseError):
        finding = error.finding
    else:
        summary = f"the model raised {type(error).__name__}: {error}"
        finding = load_cause("RW805").finding(summary, certain=True, why=str(error.__cause__ or "").strip())
    return Reply(job.id, error={"type": type(error).__name__, "finding": finding.to_dict()})


def _too_late(model: str, late_s: float) -> DeadlineExceeded:
    summary = f"a task of model {model!r} came {late_s:,.1f} s after its deadline and is not run"
    why = "it waited too long in the queue, or the clocks of the machines do not agree: a deadline is in seconds since 1970"
    return DeadlineExceeded(load_cause("RW803").finding(summary, certain=True, why=why))


def _kills_us(request: Request) -> RankwiseError:
    summary = f"a message for model {request.model!r} came back {MAX_TRIES} times without an answer and is not tried again"
    why = "each worker that took it ended, or lost its connection, before it could answer"
    return Quarantined(load_cause("RW804").finding(summary, certain=False, why=why))
