"""What runs on a node: the actor, and how inputs and results travel to it and back.

The actor is the engine of one machine, fed by Ray in as few calls as possible. A model runs in a worker process below it, as in any pool:
what an input does to its worker is seen and judged there, with the same findings, and the actor goes on. Ray tells when the actor or its
node is lost. Small values travel inside the message, large arrays through the object store. The place of such an array is then its
number among the arrays that travel beside the message, an offset in it, and the number of bytes there.
"""

from __future__ import annotations

import importlib
import marshal
import os
import pickle
import queue
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rankwise.cluster.placement import Placement
from rankwise.pool.api.model import become_like_the_caller
from rankwise.pool.backend import PoolOptions, gpus, plan_workers, this_machine
from rankwise.pool.errors import Unsendable
from rankwise.pool.memory import encoding
from rankwise.pool.memory.encoding import (
    INLINE_BYTES,
    NUMPY,
    EncodedInputs,
    Node,
    Put,
    as_array,
    each_node,
    pack,
    stays_tensor,
    torch_module,
    unpack,
)
from rankwise.pool.memory.exceptions import RemoteTraceback, pickled, raised
from rankwise.pool.memory.requests import is_one_array, not_sendable, wants_tensors
from rankwise.pool.memory.shared_memory import Slot, rounded
from rankwise.pool.processes import Processes, staffed
from rankwise.pool.schedule.state import ModelState
from rankwise.version import __version__

LARGE_BYTES = 64 << 10  # an array of at least so many bytes becomes an object of its own
_LONGEST = 20_000  # bytes of an exception, or of its traceback
_TELL_S = 1.0  # how often statistics are sent, also as a sign of life
_MOST = 2000  # answers in one message
_GATHER_S = 0.002  # answers that come so soon travel with the first one: a call costs more than most tasks
_PATIENCE_S = 0.002  # between two looks for room on the lane


@dataclass(frozen=True)
class ActorSpec:
    """Everything that an actor is made from."""

    states: dict[str, ModelState]
    specs: dict[int, bytes]
    options: PoolOptions
    seed: int
    placement: Placement


class PoolActor:
    """`run` takes tasks, `answers` returns their results; each has a thread of its own."""

    def __init__(self, spec: ActorSpec) -> None:
        self._engine = _engine(spec)
        become_like_the_caller(pickle.loads(next(iter(spec.specs.values()))))  # results may be of the caller's own classes
        self._states = list(self._engine.models.values())
        self._done: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._given = self._answered = 0  # tasks
        self._calls, self._told, self._busy = 0, 0.0, [(0, 0.0)] * len(self._states)

    def begin(self) -> dict[str, Any]:
        """Called first, and answered as soon as the actor has started: its node, host and process, and its version of rankwise."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return {"node": node, "host": socket.gethostname(), "pid": os.getpid(), "rankwise": __version__}

    def run(self, message: bytes, has_torch: bool, *arrays: np.ndarray[Any, Any]) -> None:
        """Take tasks; each names the first of its own arrays. `has_torch`: the caller has imported torch, so results may be tensors, which
        pass through this process. Importing torch takes seconds, so it is imported only if some will be."""
        tasks = marshal.loads(message)
        encoding.imports_torch = has_torch
        if has_torch and any(task[6] for task in tasks):
            importlib.import_module("torch")
        for number, model, node, deadline_s, priority, seed, to_tensor, first in tasks:
            try:
                given = self._encoded(node, arrays[first:], to_tensor)
                task = self._engine.submit_encoded(self._states[model], given, deadline_s, priority, seed=seed)
            except Exception as error:
                task = Future()
                task.set_exception(error)
            self._given += 1
            task.add_done_callback(partial(self._note, number))
        self._calls += 1

    def load(self, number: int, model: int) -> None:
        self._given += 1
        self._engine.load(self._states[model]).add_done_callback(partial(self._note, number))

    def unload(self, model: int) -> None:
        self._engine.unload(self._states[model])

    def hold(self, model: int, replicas: int) -> None:
        """Keep so many replicas of the model from now on."""
        self._states[model].replicas = replicas

    def answers(self) -> tuple[int, bytes, list[np.ndarray[Any, Any]], dict[str, Any] | None]:
        """Wait for answers: how many calls of `run` have arrived, the answers, their large arrays, and now and then statistics."""
        arrays: list[np.ndarray[Any, Any]] = []
        answers = []
        try:
            number, task = self._done.get(timeout=_TELL_S)
            until = time.monotonic() + _GATHER_S
            while True:
                error = task.exception()
                answers.append((number, *(encode_result(task.result(), arrays) if error is None else encode_error(error))))
                del task, error  # or they would keep the result's memory until the next one comes
                self._answered += 1
                if len(answers) >= _MOST:
                    break
                left_s = until - time.monotonic() if self._answered < self._given else 0.0
                number, task = self._done.get(timeout=left_s) if left_s > 0 else self._done.get_nowait()
        except queue.Empty:
            pass
        return self._calls, marshal.dumps((answers, self._seconds()), 2), arrays, self._numbers()

    def _note(self, number: int, task: Future[Any]) -> None:
        self._done.put((number, task))

    def _encoded(self, node: Node, arrays: tuple[np.ndarray[Any, Any], ...], to_tensor: bool) -> EncodedInputs:
        """The inputs as a caller on this machine would pack them: large arrays on the lane, where every worker reads them in place."""
        if is_small(node):
            return node, len(node[1][0][3]), (), to_tensor
        node, size, slots = self._engine.encoder.placed(
            lambda put: with_arrays_moved(node, arrays, lambda data: put(data, data)), self._on_lane
        )
        return node, size, slots, to_tensor

    def _on_lane(self, data: np.ndarray[Any, Any]) -> Slot:
        """Write to the lane. Waits while open tasks may make room, because a caller could not try again here."""
        arena = self._engine.arena
        while (slot := arena.write(data)) is None:
            if rounded(data.nbytes) > arena.limit_bytes or not self._engine.has_open_tasks():
                raise self._engine.no_room("an input", data.nbytes)
            time.sleep(_PATIENCE_S)
        return slot

    def _seconds(self) -> list[tuple[int, float]]:
        """For each model, its tasks since the last answer and the seconds they took."""
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
    """The engine, with the resources that Ray has given this actor, not with all of the machine."""
    placement, options = spec.placement, spec.options
    has_gpu = placement.share.gpus > 0
    here = replace(this_machine(), cores=placement.workers * placement.threads, gpus=gpus() if has_gpu else (), why="as Ray has placed it")
    if placement.node and placement.share.memory and options.memory is None:  # it is all that the node had free
        options = replace(options, memory={"cpu": placement.share.memory})
    seats = plan_workers(here, placement.workers, has_gpu, placement.threads, pin=False)
    return staffed(spec.states, spec.specs, seats, options, here, spec.seed)


# ---- inputs and results on their way


def encode(model: str, inputs: Sequence[Any], store: Callable[[Any], Any]) -> EncodedInputs:
    """The inputs as a node; `store` puts an array into the object store and returns a reference, which the encoded inputs hold."""
    refs: list[Any] = []
    try:
        node = pack(tuple(inputs), _beside(refs, store))
    except Unsendable as error:
        raise not_sendable(model, error) from error.__cause__
    return node, 0, refs, torch_module() is not None and wants_tensors(inputs)


def _beside(arrays: list[Any], store: Callable[[Any], Any] = lambda array: array) -> Put:
    """For `pack`: large arrays are added to `arrays`, which travel beside the message."""

    def put(array: np.ndarray[Any, Any], owner: Any) -> Any:
        if array.nbytes < LARGE_BYTES:
            return array.tobytes()
        # Its bytes in order, without numpy's types: the node has the dtype.
        arrays.append(store(np.ascontiguousarray(array).reshape(-1).view(NUMPY["raw"])))
        return (len(arrays) - 1, 0, array.nbytes)

    return put


def with_arrays_moved(node: Node, arrays: Sequence[np.ndarray[Any, Any]], put: Callable[[np.ndarray[Any, Any]], Any]) -> Node:
    """The same node with its bytes elsewhere: `put` gets the bytes, and returns their new place."""

    def moved(leaf: Node) -> Node:
        if leaf[0] in ("T", "N", "P", "R"):
            return (*leaf[:-1], put(_bytes_at(leaf[-1], arrays)))
        if leaf[0] == "S":  # its items are inside, as nodes
            hollow, items = marshal.loads(_bytes_at(leaf[2], arrays).tobytes())
            data = np.frombuffer(marshal.dumps((hollow, [each_node(item, moved) for item in items]), 2), np.uint8)
            return ("S", len(data), put(data))
        return leaf

    return each_node(node, moved)


def encode_result(value: Any, arrays: list[np.ndarray[Any, Any]]) -> tuple[bool, Any]:
    """A result as a node; its large arrays are added to `arrays`, which travel beside the message."""
    try:
        return True, pack(value, _beside(arrays))
    except Unsendable as error:  # rare, because the value came from a worker
        return encode_error(error)


def encode_error(error: BaseException) -> tuple[bool, Any]:
    cause = error.__cause__
    return False, (pickled(error, _LONGEST), cause.text if isinstance(cause, RemoteTraceback) else "")


def decode_value(node: Node, arrays: Sequence[np.ndarray[Any, Any]], to_tensor: bool) -> Any:
    """The caller's result, with arrays copied, because the caller may write to it, and all processes share the object store's memory."""

    def get(place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
        data = bytearray(place) if type(place) is bytes else _bytes_at(place, arrays).copy()
        return as_array(data, dtype, shape, is_tensor and stays_tensor(dtype, to_tensor))

    return unpack(node, get)


def decode_error(payload: tuple[bytes, str], model: str) -> BaseException:
    error = raised(payload, model)
    if not payload[1]:
        error.__cause__ = None  # a finding has no traceback of the model
    return error


def is_small(node: Node) -> bool:
    """Whether it is one array that fits a worker's message as it is."""
    place = node[1][0][3] if is_one_array(node) else None
    return type(place) is bytes and len(place) <= INLINE_BYTES


def _bytes_at(place: Any, arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.frombuffer(place, np.uint8) if type(place) is bytes else arrays[place[0]][place[1] : place[1] + place[2]]
