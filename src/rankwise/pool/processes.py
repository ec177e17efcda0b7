"""The default engine of `Pool`: worker processes of this machine, fed by shared memory."""

from __future__ import annotations

import itertools
import logging
import math
import select
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NoReturn

from rankwise.errors import UsageError
from rankwise.pool.api.grouped_streams import GroupedStream
from rankwise.pool.api.model import Model, parse_bytes
from rankwise.pool.api.streams import StreamOptions
from rankwise.pool.backend import Machine, PoolOptions, Requests, memory_limits, plan_workers, states_of, this_machine
from rankwise.pool.errors import no_worker, overtaken, pool_closed
from rankwise.pool.memory.encoding import NUMPY, EncodedInputs
from rankwise.pool.memory.requests import InputEncoder, rows_and_key
from rankwise.pool.schedule.pool_state import PoolState, Settings, hand_over
from rankwise.pool.schedule.state import ModelState, PoolPlan, TaskQueue, WorkerState, any_seed, derived, monotonic
from rankwise.pool.schedule.tasks import Chunk, Task, TaskFuture, cut_up
from rankwise.pool.transport.answers import Answers
from rankwise.pool.transport.listener import Listener
from rankwise.pool.transport.sender import FastPath, PlacedSpec, Sender
from rankwise.pool.workers.supervisor import Lifecycle, Supervisor

log = logging.getLogger("rankwise.pool")
_LANE_SHARE = 4  # lanes may take one part in so many of the memory
_STEP_S = 3.0  # no other thread holds a lock for so long


def start(models: dict[str, Model], options: PoolOptions) -> Processes:
    _check_is_not_green()
    _check_has_python()
    here = this_machine()
    wants_gpu = any(model.device != "cpu" for model in models.values())
    plan = plan_workers(here, options.workers, wants_gpu, options.threads, options.pin)
    states = states_of(models, here.gpus)
    _check_seats(states, plan)
    seed = any_seed() if options.seed is None else options.seed
    specs = {state.number: _spec(models[name], state, seed) for name, state in states.items()}
    return staffed(states, specs, plan, options, here, seed)


def _check_is_not_green() -> None:
    if not hasattr(select, "epoll") or socket.socket.__module__.startswith(("gevent", "eventlet")):
        raise UsageError(
            "threads and sockets of this process are not real ones: gevent or eventlet has replaced them (monkey_patch)",
            why="a pool waits in threads of its own, and where these are green, everything else would wait with them",
            next=("use real threads: gunicorn --worker-class gthread", "or a process for the models: rankwise serve MODELS.toml"),
        )


def _check_has_python() -> None:
    if getattr(sys, "frozen", False) or not sys.executable:
        raise UsageError(
            "this program is frozen (by PyInstaller, say) or embeds Python, and workers have no interpreter to run in",
            why=f"sys.executable is {sys.executable!r}; where that is the program itself, it would start a pool again, without end",
            next=("let the models run in this process: Pool(models, workers=0)", "or in one of their own: rankwise serve MODELS.toml"),
        )


def staffed(
    states: dict[str, ModelState], specs: dict[int, bytes], plan: PoolPlan, options: PoolOptions, here: Machine, seed: int
) -> Processes:
    lanes = parse_bytes(options.lane_bytes) if options.lane_bytes is not None else here.memory_bytes // _LANE_SHARE
    budgets = memory_limits(options.memory, {seat.device for seat in plan.seats})
    output_bytes = max(64 << 20, lanes // (2 * len(plan.seats)))
    return Processes(states, specs, Settings(options.max_queue, lanes, output_bytes, options.idle_s, plan, budgets, seed), here.gpus)


class Processes:
    """A `Backend` of worker processes, between the callers' threads and the workers. It queues tasks, sends what the scheduler decides,
    and takes in what the workers answer."""

    def __init__(self, models: dict[str, ModelState], specs: dict[int, bytes], settings: Settings, gpus: tuple[str, ...]) -> None:
        self._gpus, self._changing, self._numbers = gpus, threading.Lock(), itertools.count(len(models))
        self.models, self.plan = models, settings.plan
        self.state = state = PoolState(list(models.values()), settings)
        self._lock, self._scheduler, self.arena, self.counters = state.lock, state.scheduler, state.arena, state.counters
        self.withdraw, self.forget = state.withdraw, state.forget
        self.has_open_tasks, self.stats = state.has_open_tasks, state.snapshot
        self.encoder = InputEncoder(state.arena, state.input_bytes)
        self.no_room = self.encoder.no_room
        placed = {number: PlacedSpec(spec, state.arena) for number, spec in specs.items()}  # may raise, so nothing is open yet
        self._listener = Listener(self)
        self.help, self.read_in, self.let_go = self._listener.help, self._listener.read_in, self._listener.let_go
        self._sender = Sender(state, placed, self._listener.expect)
        self._act = self._sender.act
        self._answers = Answers(state, self._act)
        fast_path = FastPath(state, self, self._listener.expect)
        self._fast_path, self.take_answer = fast_path.send, fast_path.finish
        self.lifecycle = Lifecycle(state, self._listener, self)
        self._supervisor = Supervisor(state, self.lifecycle)
        try:
            self.lifecycle.go_on(monotonic())
            self._listener.start()
        except BaseException as error:
            self.lifecycle.close()
            self._listener.close_own()
            if isinstance(error, (BlockingIOError, RuntimeError)):
                raise no_worker(f"no process or thread can be started: {error}", ("ulimit -u says how many there may be",)) from error
            raise

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    @property
    def is_busy(self) -> bool:
        for worker in list(self._scheduler.workers.values()):  # noqa: SIM110  (any() makes a generator, which takes longer than the rest)
            if worker.inflight:
                return True
        return False

    # ---- for callers, from any thread

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        return self.submit_encoded(model, self.encoder.encode(model.name, inputs), deadline_s, priority, seed=seed)

    def submit_encoded(
        self,
        model: ModelState,
        encoded: EncodedInputs,
        deadline_s: float | None = None,
        priority: int = 0,
        is_lazy: bool = False,
        seed: int | None = None,
    ) -> Future[Any]:
        rows, key = rows_and_key(encoded[0]) if model.max_batch > 1 and seed is None else (0, None)
        if deadline_s is None and rows < 2 and not priority and not is_lazy and seed is None:
            fast_path = self._fast_path(model, encoded, rows, key)
            if fast_path is not None:
                return fast_path
        now = monotonic()
        future = TaskFuture(model, encoded, now, self)
        if is_lazy:
            future.is_lazy = True
        if priority:
            future.priority = priority
        if deadline_s is not None:
            future.deadline = now + deadline_s
        if seed is not None:  # its random numbers are its own, so it shares no batch
            future.seed = seed
        elif model.max_batch > 1:
            future.rows, future.key = rows, (future.to_tensor, key)
            if rows > model.max_batch:
                cut_up(future, self, self.arena)
        self._queue(future)
        return future

    def stream(self, requests: Requests, options: StreamOptions) -> Iterator[Any]:
        return GroupedStream(self, options).results(requests)

    def submit_chunk(self, chunk: Chunk) -> Future[Any]:
        chunk.submitted = monotonic()
        self._queue(chunk)
        return chunk

    def load(self, model: ModelState) -> Future[None]:
        """The future is settled when the model is loaded or cannot be loaded. A model that could not be built before is tried again."""
        future: Future[None] = Future()
        with self._lock:
            if self.state.is_closing:
                raise self.state.closed()
            if model.broken is not None:
                model.broken, model.build_failures, model.not_before = None, 0, 0.0
            model.awaiting_load.append(future)
            if self._scheduler.is_loaded(model):
                self.state.tell_loaded(model)
            self._plan(monotonic())
        self.state.settle()
        return future

    def unload(self, model: ModelState) -> None:
        with self._lock:
            self._scheduler.let_leave(model)
            self._act(self._scheduler.leaving_drops(), monotonic())

    def add(self, name: str, model: Model) -> None:
        """A worker loads the model when the first task asks for it."""
        with self._changing:
            self.models[name] = self._added(name, model, is_current=True)

    def remove(self, name: str) -> None:
        with self._changing:
            model = self.models.pop(name)
        self._remove(model, None)  # without the lock, because it settles futures, whose callbacks may add and remove models

    def reload(self, name: str, model: Model) -> Future[None]:
        """The new model is built beside the old one, which goes on answering until the new one is loaded."""
        with self._changing:
            state = self._added(name, model, is_current=False)
        loaded, done = self.load(state), Future[None]()

        def swap(_: Future[None]) -> None:
            error = loaded.exception()
            with self._changing:
                old = self.models.get(name) if error is None and not done.cancelled() else None
                if error is None and (old is None or old.number > state.number):
                    old, error = None, overtaken(name)
                if old is not None:
                    self.models[name] = state
            if old is not None:
                self._remove(old, state)
            else:
                self._remove(state, None)
            if done.set_running_or_notify_cancel():
                done.set_result(None) if error is None else done.set_exception(error)

        loaded.add_done_callback(swap)
        return done

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """An array in lane memory, which every worker reads in place."""
        array = self.arena.lend(shape, dtype, as_tensor)
        if array is None:
            raise self.no_room("pool.empty", math.prod(shape) * NUMPY[dtype].itemsize)
        return array

    def can_wait_here(self) -> bool:
        """Whether `close` may wait in this thread. A callback may not: its thread reads the answers that `close` would wait for. A signal
        handler or a finalizer may not, if it interrupted this thread in the middle of a step that holds a lock."""
        return not self._listener.is_this_thread() and _comes_free(self._lock) and _comes_free(self.arena.lock)

    def close(self, cancel: bool, timeout: float | None) -> None:
        """Finish what was submitted, or cancel what waits; then end everything."""
        self._listener.let_go()
        self.state.close(cancel, timeout)
        self._listener.wake()
        self._listener.join()

    def forget_after_fork(self) -> None:
        """In a forked child: close what belongs to the parent, so that the workers notice the parent's end. The locks are made anew,
        because a thread that held one at the fork does not exist in the child."""
        self.state.forget_after_fork()
        self.help = self._help_after_fork
        self._listener.close_after_fork()
        self.lifecycle.close_after_fork()

    def _help_after_fork(self, task: Task, timeout: float | None) -> NoReturn:
        raise self.state.closed()

    def run_uncut(self, task: Task) -> None:
        """Run a request once more in one piece, because the results of its parts cannot be joined; its model is not batched any more."""
        state = self.state
        with self._lock:
            if task.is_over or task.alone:  # another part has asked for this already
                return
            state.end_parts(task)
            self._answers.stop_batching(task.model, "what it returns for parts of a request does not make one output")
            if state.is_closed or task.model.broken is not None:
                state.fail(task, task.model.broken or pool_closed())
            else:
                task.alone = True
                self._scheduler.add_again([task])
                self._plan(monotonic())
        state.settle()

    def _queue(self, task: Task) -> None:
        state, scheduler, now = self.state, self._scheduler, task.submitted
        with self._lock:
            if task.model.successor is not None:
                hand_over(task)
            model: ModelState = task.model
            queue: TaskQueue = model.queue
            if state.is_closing or model.broken is not None or queue.waiting - queue.extra >= state.settings.max_queue:
                state.refuse(task)
            if task.parts:
                state.divided.add(task)
                for part in task.parts:
                    scheduler.add(part)
            else:
                scheduler.add(task)
            if task.deadline is not None:
                state.deadlines.add(task.deadline, task)
                self._listener.wake_by(task.deadline)
            elif now < model.held_until and model.queue.rows_like(task) < model.max_batch:
                return  # a batch that waits for more rows
            if self._listener.plans_soon():
                return
            for worker in scheduler.workers.values():
                if len(worker.inflight) < 2 and worker.is_ready:  # busy workers get more when they answer, many at once
                    self._act(scheduler.plan(now), now)
                    self._listener.wake_by(scheduler.wake_at)
                    break
        state.settle()

    def _added(self, name: str, model: Model, is_current: bool) -> ModelState:
        state = states_of({name: model}, self._gpus, next(self._numbers))[name]
        state.is_current = is_current
        _check_seats({name: state}, self.plan)
        spec = _spec(model, state, self.state.settings.seed)
        with self._lock:
            if self.state.is_closing:
                raise self.state.closed()
            placed = PlacedSpec(spec, self.arena)
            self.state.add_model(state)
            self._sender.specs[state.number] = placed
        return state

    def _remove(self, model: ModelState, successor: ModelState | None) -> None:
        now = monotonic()
        with self._lock:
            self.state.remove_model(model, successor)
            self._let_leave(now)
            self._plan(now)
        self.state.settle()

    # ---- for the listener's thread

    def take_message(self, worker: WorkerState, message: tuple[Any, ...] | None) -> None:
        """One packet of a worker; None: it has closed its socket."""
        now = monotonic()
        with self._lock:
            if message is None:
                self.lifecycle.socket_closed(worker)
            elif message[0] == "one":
                _, serial, nanoseconds, ok, node, flags = message
                self._answers.take(worker, (serial, nanoseconds, ((ok, node),), flags), now)
            elif message[0] == "done":
                for answer in message[1]:
                    self._answers.take(worker, answer, now)
            elif message[0] == "segment":
                worker.handle.add_segment(message[1])
            elif message[0] == "unbatchable":
                if (model := self._scheduler.models.get(message[1])) is not None:  # None: it was removed meanwhile
                    self._answers.stop_batching(model, message[2])
            elif message[0] == "gpu_unusable":
                self._answers.gpu_unusable(worker, message, now)
            elif message[0] == "loaded":
                self._answers.loaded(worker, message, now)
            elif message[0] == "failed":
                self._answers.not_built(worker, message, now)
            elif message[0] == "ready":
                self.lifecycle.ready(worker, message[1])
            if worker.handle.lacks_segment and message is not None and message[0] in ("one", "done"):
                worker.is_ready = False  # it would go on putting results into memory that this process cannot read
                worker.handle.kill()
            self._plan_waiting(now)
        self.state.settle()

    def go_on(self, now: float) -> None:
        with self._lock:
            self._plan_waiting(now)
        self.state.settle()

    def tick(self, now: float) -> None:
        idle_s = self.state.settings.idle_s
        with self._lock:
            self.lifecycle.go_on(now)
            if idle_s is not None:
                self._act(self._scheduler.idle_drops(now, idle_s), now)
            self.state.let_departed_leave()
            self._let_leave(now)
            self._plan(now)
        self._supervisor.look(now)
        self.state.settle()

    def next_moment(self, latest: float) -> float:
        with self._lock:
            moments = (latest, self.state.deadlines.next(), self._scheduler.wake_at)
        return min([moment for moment in moments if moment])

    def on_time(self, now: float) -> None:
        with self._lock:
            for task in self.state.deadlines.passed(now):
                self.state.expire(task)
            if self._scheduler.wake_at is not None and now >= self._scheduler.wake_at:
                self._act(self._scheduler.plan(now), now)
        self.state.settle()

    def give_up(self, why: str) -> None:
        with self._lock:
            self.state.give_up(why)
        self.state.settle()

    def tear_down(self) -> None:
        with self._lock:
            self.state.is_closed = self.state.is_closing = True
        self.lifecycle.close()
        self._scheduler.workers.clear()
        self.lifecycle.workers.clear()
        self.arena.close()
        self._sender.close()
        self.state.settle()

    # ---- the lock is held from here on

    def _plan(self, now: float) -> None:
        self._act(self._scheduler.plan(now), now)

    def _plan_waiting(self, now: float) -> None:
        if self._scheduler.has_waiting:
            self._act(self._scheduler.plan(now), now)
        if self.state.is_closing:
            self.state.all_done.notify_all()

    def _let_leave(self, now: float) -> None:
        """Drop the models that are to leave and have nothing left to do; forget those of them that were removed."""
        self._act(self._scheduler.leaving_drops(), now)
        for model in self.state.forget_departed():
            self._sender.forget(model)


def _comes_free(lock: threading.Lock) -> bool:
    is_free = lock.acquire(timeout=_STEP_S)
    if is_free:
        lock.release()
    return is_free


def _spec(model: Model, state: ModelState, seed: int) -> bytes:
    """The model's spec, in which the device has no number, because a worker sees only its own GPU."""
    return model.spec(state.name, state.device.split(":")[0], derived(seed, "model", state.name))


def _check_seats(states: dict[str, ModelState], plan: PoolPlan) -> None:
    """Raise if no worker can hold a model. Lower `replicas` to the number of workers that can, or `load` would never be done."""
    for name, state in states.items():
        seats = sum(state.may_run_on(seat.device) for seat in plan.seats)
        if state.replicas is not None and 0 < seats < state.replicas:
            log.warning("model %r asks for %d replicas; it gets %d, one for each worker that can hold it", name, state.replicas, seats)
            state.replicas = seats
        if not seats:
            raise UsageError(f"no worker has the device of model {name!r}, {state.device}", why=plan.why, next=("ask for more workers",))
