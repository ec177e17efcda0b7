"""The actor: the engine of one machine on a node of the cluster, which takes tasks and gives answers in as few calls as it can.

A model runs in a worker process below it, as everywhere: what an input does to its worker is seen and judged there, with the same
findings, and the actor goes on. Ray knows the actor, and tells when it or its node is lost.
"""

from __future__ import annotations

import importlib
import marshal
import os
import pickle
import queue
import socket
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rankwise.pool.api.model import become_like_the_caller
from rankwise.pool.backend import PoolOptions, gpus, plan_workers, this_machine
from rankwise.pool.memory.encoding import INLINE_BYTES, EncodedInputs, Node, folded
from rankwise.pool.memory.shared_memory import Slot, rounded
from rankwise.pool.processes import Processes, staffed
from rankwise.pool.ray.encoding import ResultEncoder, is_small, with_arrays_moved
from rankwise.pool.schedule.state import ModelState

_TELL_S = 1.0  # how often the numbers are told, also as a sign of life
_MOST = 2000  # answers in one message
_PATIENCE_S = 0.002  # between two looks whether the lane has room


@dataclass(frozen=True)
class ActorSpec:
    """What an actor is made from."""

    states: dict[str, ModelState]
    specs: dict[int, bytes]
    options: PoolOptions
    workers: int
    threads: int
    has_gpu: bool
    seed: int


class PoolActor:
    """`run` takes tasks, `answers` gives what has become of them; each in a thread of its own."""

    def __init__(self, spec: ActorSpec) -> None:
        self._engine = _engine(spec)
        become_like_the_caller(pickle.loads(next(iter(spec.specs.values()))))  # results may be of classes that are the caller's
        self._states = list(self._engine.models.values())
        self._done: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._calls, self._told, self._busy = 0, 0.0, [(0, 0.0)] * len(self._states)

    def begin(self) -> dict[str, Any]:
        """Answered as soon as the actor is there: where that is."""
        import ray

        return {"node": ray.get_runtime_context().get_node_id(), "host": socket.gethostname(), "pid": os.getpid()}

    def run(self, message: bytes, has_torch: bool, *arrays: np.ndarray[Any, Any]) -> None:
        """Each task with the number of the first of the arrays that are its own. `has_torch`: the caller has imported it, so that
        results are tensors there, and pass through here as such."""
        if has_torch:
            importlib.import_module("torch")
        for number, model, node, deadline_s, priority, seed, to_tensor, first in marshal.loads(message):
            try:
                given = self._encoded(node, arrays[first:], to_tensor)
                task = self._engine.submit_encoded(self._states[model], given, deadline_s, priority, seed=seed)
            except Exception as error:
                task = Future()
                task.set_exception(error)
            task.add_done_callback(partial(self._note, number))
        self._calls += 1

    def load(self, number: int, model: int) -> None:
        self._engine.load(self._states[model]).add_done_callback(partial(self._note, number))

    def unload(self, model: int) -> None:
        self._engine.unload(self._states[model])

    def hold(self, model: int, replicas: int) -> None:
        """It has the model so often, from now on."""
        self._states[model].replicas = replicas

    def answers(self) -> tuple[int, bytes, list[np.ndarray[Any, Any]], dict[str, Any] | None]:
        """As soon as there is one: the calls of `run` that were heard so far, the answers, their large arrays, and now and then numbers."""
        encoder, answers = ResultEncoder(), []
        try:
            number, task = self._done.get(timeout=_TELL_S)
            while True:
                error = task.exception()
                answers.append((number, *(encoder.result(task.result()) if error is None else encoder.failure(error))))
                del task, error  # or the memory of its result would be in use until the next one comes
                if len(answers) >= _MOST:
                    break
                number, task = self._done.get_nowait()
        except queue.Empty:
            pass
        return self._calls, marshal.dumps((answers, self._seconds()), 2), encoder.arrays, self._numbers()

    def close(self) -> None:
        self._engine.close(cancel=True, timeout=0)

    def _note(self, number: int, task: Future[Any]) -> None:
        self._done.put((number, task))

    def _encoded(self, node: Node, arrays: tuple[np.ndarray[Any, Any], ...], to_tensor: bool) -> EncodedInputs:
        """As a caller of this machine would have packed it: large arrays on the lane, where every worker reads them in place."""
        if is_small(node):
            return node, len(node[1][0][3]), (), to_tensor
        slots: list[Slot] = []
        arena = self._engine.arena

        def put(data: np.ndarray[Any, Any], owner: Any = None) -> Any:
            if data.nbytes <= INLINE_BYTES:
                return data.tobytes()
            slots.append(slot := self._on_lane(data))
            return (slot.segment, slot.offset, data.nbytes)

        try:
            node, size = folded(with_arrays_moved(node, arrays, put), put)
        except BaseException:
            for slot in slots:
                arena.drop(slot)
            raise
        return node, size, slots, to_tensor

    def _on_lane(self, data: np.ndarray[Any, Any]) -> Slot:
        """Waits while what is under way may make room: nobody here could try again."""
        arena = self._engine.arena
        while (slot := arena.write(data)) is None:
            if rounded(data.nbytes) > arena.limit_bytes or not self._engine.has_open_tasks():
                raise self._engine.no_room("an input", data.nbytes)
            time.sleep(_PATIENCE_S)
        return slot

    def _seconds(self) -> list[tuple[int, float]]:
        """Tasks of each model since the last answer, and the seconds they took."""
        now = []
        for state in self._states:
            counted = self._engine.counters.of(state.name)
            counted.sort_in()
            now.append((counted.tasks, counted.busy_s))
        before, self._busy = self._busy, now
        return [(tasks - past[0], busy_s - past[1]) for (tasks, busy_s), past in zip(now, before)]

    def _numbers(self) -> dict[str, Any] | None:
        now = time.monotonic()
        if now - self._told < _TELL_S:
            return None
        self._told = now
        return self._engine.stats()


def _engine(spec: ActorSpec) -> Processes:
    """On what Ray has given this actor, whatever else the machine has."""
    here = replace(this_machine(), cores=spec.workers * spec.threads, gpus=gpus() if spec.has_gpu else (), why="as Ray has placed it")
    seats = plan_workers(here, spec.workers, spec.has_gpu, spec.threads, pin=False)
    return staffed(spec.states, spec.specs, seats, spec.options, here.memory_bytes, spec.seed, here.gpus)
