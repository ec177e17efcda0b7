"""Takes in a worker's messages: results go to the futures, run times to the scheduler, and models become loaded or broken.

The pool's lock is held in all of this."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rankwise.errors import whole_text
from rankwise.pool.errors import MAX_BUILDS, Death, back_off_s, build_failed, not_batched, too_large
from rankwise.pool.memory.encoding import EVEN, LANE_SHARE, UNEVEN, Uneven
from rankwise.pool.memory.exceptions import raised
from rankwise.pool.memory.requests import cut_value
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.state import Action, ModelState, Order, WorkerState
from rankwise.pool.schedule.tasks import Chunk, Part, Task
from rankwise.pool.transport.connection import HALVED, KEPT, UNBATCHABLE

log = logging.getLogger("rankwise.pool")
_NOBODY = Task(None, (None, 0, (), True), 0.0)


class Answers:
    def __init__(self, state: PoolState, act: Callable[[list[Action], float], None]) -> None:
        self._state, self._act, self._scheduler, self._counters = state, act, state.scheduler, state.counters

    def take(self, worker: WorkerState, answer: tuple[Any, ...], now: float) -> None:
        worker.handle.has_answered = True
        serial, results = answer[0], answer[2]
        order = worker.inflight.pop(serial, None)
        if order is None:  # it was taken back from this worker
            self._throw_away(worker, separate(results))
            return
        try:
            self._take_order(worker, order, answer, now)
        except BaseException:  # a signal handler raised in the middle: the supervisor will see that the worker does not know this order
            worker.inflight[serial] = order
            raise

    def _take_order(self, worker: WorkerState, order: Order, answer: tuple[Any, ...], now: float) -> None:
        _, nanoseconds, results, flags = answer
        self._scheduler.take_back(worker, order, now)
        if isinstance(order.tasks[0], Chunk):
            self._take_chunk(worker, order.tasks[0], results, nanoseconds / 1e9, flags, now)
            return
        self._learn(order, nanoseconds / 1e9, flags, any(ok for ok, _ in results))
        if order.is_joined:
            self._take_joined(worker, order, results[0], flags, now)
            return
        if order.model.unbatched is not None:
            self._want_whole(order.tasks, flags)
            if len(order.tasks) > 1 and not flags & UNBATCHABLE:  # they ran in a batch before its rows turned out to depend
                self._throw_away(worker, results)
                self._run_alone(order.tasks)
                return
        for task, (ok, data) in zip(order.tasks, results):
            if task.is_over:
                self._throw_away(worker, [(ok, data)])
            else:
                self._finish(worker, task, ok, data, now, flags)

    def _take_chunk(self, worker: WorkerState, chunk: Chunk, results: tuple[Any, ...], seconds: float, flags: int, now: float) -> None:
        """Take the results of a chunk's requests; of the first ones only, if the others were taken back."""
        if chunk.is_over:
            self._throw_away(worker, separate(results))
            return
        values, errors = self._values(worker, chunk, results)
        if values:
            chunk.model.ran(0, seconds / len(values))
            chunk.model.gave(_bytes_of(results) / len(values))
        self._counters.of(chunk.model.name).did_chunk(now - chunk.submitted, seconds, len(values) - len(errors), len(errors))
        if flags & KEPT:  # the model still has an input: these pages are not used again
            chunk.slots = ()
        chunk.worker = None
        if chunk.take(0, values, errors):
            self._state.done_chunk(chunk)
        else:  # the message was full, or the rest had been taken back before
            self._state.take_from_chunk(chunk, len(values))

    def _values(self, worker: WorkerState, chunk: Chunk, results: tuple[Any, ...]) -> tuple[list[Any], dict[int, BaseException]]:
        if results[0] == EVEN:
            try:
                return worker.handle.reader.even(chunk, *results[1:]), {}
            except Exception as error:  # the results cannot be read here
                return [None] * results[3], dict.fromkeys(range(results[3]), error)
        values: list[Any] = []
        errors: dict[int, BaseException] = {}
        for i, (ok, data) in enumerate(results[1]):
            ok, value = _read(worker, chunk, ok, data)
            values.append(value if ok else None)
            if not ok:
                errors[i] = value
        return values, errors

    def _take_joined(self, worker: WorkerState, order: Order, result: tuple[bool, Any], flags: int, now: float) -> None:
        """Give each task its rows of the result. If the run of all together failed, each task runs by itself."""
        ok, node = result
        ok, value = _read(worker, order.carrier or order.tasks[0], ok, node)
        if flags & KEPT and order.carrier is not None:  # the model still has its input: these pages are not used again
            order.carrier.slots = ()
        if not ok or order.model.unbatched is not None:
            if order.model.unbatched is not None:
                self._want_whole(order.tasks, flags)
            self._run_alone(order.tasks)
            return
        is_array = hasattr(value, "shape")
        start, latencies = 0, []
        for task in order.tasks:
            stop = start + task.rows
            if not task.is_over:
                latencies.append(now - task.submitted)
                self._state.done(task, value[start:stop] if is_array else cut_value(value, start, stop))
            start = stop
        self._counters.of(order.model.name).completed_many(latencies)

    def _run_alone(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.alone = True
        self._scheduler.add_again([task for task in tasks if not task.is_over])

    def gpu_unusable(self, worker: WorkerState, message: tuple[Any, ...], now: float) -> None:
        """The worker leaves, because its GPU does nothing any more. A request that ran alone caused that; several run again, one by one."""
        _, serial, data, text = message
        worker.is_ready = False
        worker.handle.has_answered = True
        worker.handle.verdict = Death(None, is_gpu_unusable=True)
        worker.handle.kill()
        order = worker.inflight.pop(serial, None)
        if order is None:
            return
        self._scheduler.take_back(worker, order, now)
        tasks = order.tasks
        if isinstance(tasks[0], Chunk):
            tasks, others = self._state.dissolve(tasks[0], worker.handle.page.item)
            self._scheduler.add_again(others)
        elif len(tasks) > 1:
            self._run_alone(tasks)
            return
        error = raised((data, text), order.model.name)
        error.add_note("rankwise: after this error nothing more could run on the GPU in the same process, so its worker was replaced")
        for task in tasks:
            if not task.is_over:
                self._state.fail(task, error)

    def _want_whole(self, tasks: list[Task], flags: int) -> None:
        """Run cut requests again in one piece: rows of this model depend on each other, so the result of a part means nothing."""
        for task in tasks:
            if isinstance(task, Part) and not task.is_over:
                if flags & KEPT:
                    task.slots = ()
                self._state.conclude(task, False, Uneven())

    def _finish(self, worker: WorkerState, task: Task, ok: bool, data: Any, now: float, flags: int) -> None:
        counted = self._counters.of(task.model.name)
        counted.took(now - task.submitted)
        if not ok and data is None:  # its deadline had passed when its turn came
            self._state.expire(task)
            return
        ok, value = _read(worker, task, ok, data)
        if ok:
            counted.completed += 1
        else:
            counted.failed += 1
        if flags & KEPT:  # the model still has its input: these pages are not used again
            task.slots = ()
        self._state.conclude(task, ok, value)

    def _learn(self, order: Order, seconds: float, flags: int, ok: bool) -> None:
        model = order.model
        rows = sum([task.rows for task in order.tasks])
        model.ran(rows, seconds)
        self._counters.of(model.name).ran(len(order.tasks), rows, seconds, ok)
        if flags & HALVED:
            model.max_batch = max(1, min(model.max_batch, rows // 2))
            log.warning("memory ran out for %d rows of model %r; from now on %d at once", rows, model.name, model.max_batch)

    def stop_batching(self, model: ModelState, reason: str) -> None:
        """Run the model without batches from now on. Results of batches that are under way do not count, and their tasks run again."""
        if model.unbatched is None:
            model.max_batch = 1
            model.unbatched = not_batched(model.name, reason)
            log.warning("%s", whole_text(model.unbatched))

    def _throw_away(self, worker: WorkerState, results: list[tuple[bool, Any]]) -> None:
        """Read the results and drop them, so that their room in the lane is free again."""
        for ok, data in results:
            if ok:
                _read(worker, _NOBODY, ok, data)

    def loaded(self, worker: WorkerState, message: tuple[Any, ...], now: float) -> None:
        _, serial, number, nbytes, seconds, stamp = message
        model = self._scheduler.models[number]
        self._compare_weights(worker, model, stamp)
        self._scheduler.take_back(worker, worker.inflight.pop(serial), now)
        self._counters.of(model.name).loads += 1
        log.info("model %r loaded in worker %d: %.1f MB in %.2f s", model.name, worker.number, nbytes / 1e6, seconds)
        self._act(self._scheduler.loaded(worker, model, nbytes, seconds, now), now)
        place = model.place_on(worker.device)
        limit = self._state.settings.budgets.get(place)
        if limit is not None and nbytes > limit:
            self._state.break_model(model, too_large(model.name, nbytes, place, limit))
        if self._scheduler.is_loaded(model):
            self._state.tell_loaded(model)

    def _compare_weights(self, worker: WorkerState, model: ModelState, stamp: Any) -> None:
        """Warn about replicas with different weights: a new or replaced worker reads what `weights` or `build` names at that time."""
        others = [other for other in self._scheduler.workers.values() if other is not worker and model.number in other.holds]
        if model.stamp not in (None, stamp) and any(not other.holds[model.number].is_leaving for other in others):
            said = "model %r has other weights in worker %d than in others: their file was changed, or its build draws numbers that are not"
            log.warning(said + " seeded; pool.reload(%r) reads the file for all", model.name, worker.number, model.name)
        model.stamp = stamp

    def not_built(self, worker: WorkerState, message: tuple[Any, ...], now: float) -> None:
        """The build raised. It would raise again, so all tasks of the model fail with its error. But if memory or files ran out, which may
        pass, it is tried a few more times, each in a fresh worker."""
        _, serial, number, data, text, is_passing = message
        model = self._scheduler.models[number]
        self._scheduler.take_back(worker, worker.inflight.pop(serial), now)
        worker.holds.pop(number, None)
        model.build_failures += 1
        if is_passing and model.build_failures < MAX_BUILDS:
            log.warning(
                "memory, files or threads ran out while worker %d built model %r; it is tried again in another one",
                worker.number,
                model.name,
            )
            model.not_before = now + back_off_s(model.build_failures)
            worker.is_ready, worker.handle.has_answered = False, True
            worker.handle.kill()
            return
        cause = raised((data, text), model.name)
        error = build_failed(model.name, text, model.build_failures, cause)
        error.__cause__ = cause
        self._state.give_up_building(model, error, now)


def _read(worker: WorkerState, task: Task, ok: bool, data: Any) -> tuple[bool, Any]:
    """The model's result, or the exception that the caller gets instead."""
    try:
        return ok, worker.handle.reader.value(task, data) if ok else raised(data, task.model.name)
    except Exception as error:  # the result cannot be read here: its class cannot be imported, say
        return False, error


def separate(results: Any) -> list[tuple[bool, Any]]:
    """Those results of an order or a chunk that may lie on the worker's lane, one by one."""
    if results and results[0] == EVEN:
        _, dtype, shape, count, place = results
        return [] if type(place) is bytes else [(True, ("N", dtype, (count, *shape), place))]
    return list(results[1] if results and results[0] == UNEVEN else results)


def _bytes_of(results: tuple[Any, ...]) -> int:
    """About what a chunk's results cost this process to take, in bytes of a message."""
    return _node_bytes(results[4]) if results[0] == EVEN else sum([_node_bytes(node) for ok, node in results[1] if ok])


def _node_bytes(node: Any) -> int:
    if type(node) is bytes or type(node) is str:
        return len(node)
    if type(node) is tuple and len(node) == 5 and node[0] == "o":  # on the worker's lane: it is not copied
        return int(node[3]) // LANE_SHARE
    return sum([_node_bytes(item) for item in node]) if type(node) in (tuple, list) else 0
