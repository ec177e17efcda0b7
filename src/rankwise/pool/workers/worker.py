"""A worker: takes orders from its socket, runs them one after the other, and answers in as few packets as possible."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from marshal import dumps
from typing import Any, NoReturn

import torch

from rankwise.pool.memory.encoding import INLINE_BYTES, Node, Part, fitted, pack, unpack
from rankwise.pool.memory.exceptions import failure, shortened
from rankwise.pool.memory.shared_memory import Segment
from rankwise.pool.transport.connection import (
    ANSWERED,
    BRISK_NS,
    KEPT,
    MAX_BYTES,
    RUNS_ON,
    SEND,
    SIZE,
    STACK_SIGNAL,
    UNBATCHABLE,
    PostWatch,
    Receiver,
    StatusPage,
    current_cpu,
    send,
    wait_at_most,
)
from rankwise.pool.workers.lanes import MOST_BYTES, ChunkResults, Inputs, Outputs, requests_of
from rankwise.pool.workers.model_building import (
    KEPT_S,
    BuiltModel,
    free_memory,
    keep_freed_memory,
    load,
    return_unused_memory,
    seed_all,
    seeded,
)
from rankwise.pool.workers.row_checks import RowChecker
from rankwise.pool.workers.runner import GpuUnusable, Runner, check_gpu_usable, ran_out

_IDLE_S = 1.2 * KEPT_S
_RESULTS_BYTES = 80_000  # of the results of one order, in its answer


def serve(orders: dict[str, Any], fds: list[int]) -> None:
    """Run a worker. Never returns: the process ends when the socket is closed."""
    sock, page, crash = socket.socket(fileno=fds[0]), StatusPage(Segment(fds[1], SIZE)), fds[2]
    faulthandler.enable(file=crash, all_threads=False)
    faulthandler.register(STACK_SIGNAL, file=crash, all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(orders["threads"])
    seed_all(orders["seed"])  # each worker has its own seed, or all would draw the numbers that the fork server would have drawn
    keep_freed_memory()
    _set_title(f"rankwise-w{orders['number']}")
    note_own_signals(page)
    Worker(sock, page, orders["soft_limit"]).serve()
    os._exit(0)


class Worker:
    def __init__(self, sock: socket.socket, page: StatusPage, soft_limit: int) -> None:
        self._sock, self._page = sock, page
        self._receiver = Receiver(sock)
        self._inputs = Inputs()
        self._outputs = Outputs(sock, page, soft_limit, self._inputs.alias)
        self._models: dict[int, BuiltModel] = {}
        self._runner = Runner(RowChecker(), self._held_bytes)
        self._serial = self._number = 0  # of the present order, and of its model
        self._pid = os.getpid()
        self._has_forked = False  # True in a child of this process; quicker to read than the pid after each request
        os.register_at_fork(after_in_child=lambda: setattr(self, "_has_forked", True))
        self._runner.on_call, self._runner.on_wait = self._begin_call, page.wait_for_gpu
        self._answers: list[tuple[Any, ...]] = []
        self._answers_bytes = 0
        self._answered_ns = self._answer_after_ns = 0
        self._brisk = 0  # the serial of a quick task that has just been answered
        self._post_watch = PostWatch(page)
        self._is_trimmed, self._trim_at_ns = True, 0  # whether unused memory was returned; when to return that of a dropped model

    def serve(self) -> None:
        send(self._sock, ("ready", os.getpid()), wait=True)
        self._inference = torch.inference_mode()
        self._inference.__enter__()  # once: entering it for each task would take longer than a small model
        while True:
            if self._brisk:  # it was called for something quick, so the next may come sooner than it could fall asleep and wake up
                self._post_watch.watch(self._brisk)
                self._brisk = 0
            message = self._next_message()
            if message is None:
                return
            if message[0] == "one":
                self._on_one(message)
            else:
                getattr(self, f"_on_{message[0]}")(*message[1:])
            if self._inputs.lacks_segment:  # the task has failed; another worker may be able to read the next one
                return

    def _next_message(self) -> Any:
        """The next message. When none comes for a while, or a while after a model was dropped, unused memory goes back to the machine."""
        while True:
            if self._trim_at_ns and time.monotonic_ns() > self._trim_at_ns:
                return_unused_memory()
                self._trim_at_ns = 0
            try:
                message = self._receiver.receive(wait=True)
            except BlockingIOError:
                return_unused_memory()
                wait_at_most(self._sock, 0)
                self._is_trimmed, self._trim_at_ns = True, 0
            else:
                if self._is_trimmed:
                    wait_at_most(self._sock, _IDLE_S)
                    self._is_trimmed = False
                return message

    def _on_segment(self, size: int) -> None:
        self._inputs.add_segment(self._receiver.fds, size)
        if self._models and isinstance(self._inputs.segments[-1], OSError):  # a new worker may have room for it
            os._exit(1)

    def _on_load(self, serial: int, number: int, place: Any, has_file: bool) -> None:
        self._page.run(serial, time.monotonic_ns())
        started = time.perf_counter()
        self._inference.__exit__(None, None, None)  # parameters made inside it could never be trained or changed in place
        weights_fd = self._receiver.fds.pop(0) if has_file and self._receiver.fds else None  # without it, the model keeps its own weights
        try:
            self._models[number] = model = load(pickle.loads(self._inputs.raw(place)), weights_fd)
        except BaseException as error:  # SystemExit from a script without a main guard, say: user code must not end the worker
            self._check_is_worker(number)
            self._not_built(serial, number, error)
        else:
            self._check_is_worker(number)
            send(self._sock, ("loaded", serial, number, model.nbytes, time.perf_counter() - started, model.stamp), wait=True)
        if weights_fd is not None:
            os.close(weights_fd)
        self._inference.__enter__()
        self._page.run(0, 0)

    def _not_built(self, serial: int, number: int, error: BaseException) -> None:
        is_passing = ran_out(error) or ran_out(error.__cause__)  # its cause, because a warm-up that fails raises an error of its own
        send(self._sock, ("failed", serial, number, *failure(error), is_passing), wait=True)
        try:
            check_gpu_usable(error)
        except GpuUnusable as unusable:
            self._leave(0, unusable)
        free_memory()

    def _held_bytes(self) -> int:
        return sum([model.nbytes for model in self._models.values() if model.device.type == "cuda"])

    def _leave(self, serial: int, unusable: GpuUnusable) -> NoReturn:
        """End, because nothing would run in this process any more. Earlier results are sent first; other workers run what waits here."""
        self._answer()
        send(self._sock, ("gpu_unusable", serial, *unusable.packed), wait=True)
        os._exit(1)

    def _on_drop(self, number: int) -> None:
        self._models.pop(number, None)
        free_memory()
        self._trim_at_ns = time.monotonic_ns() + int(1e9 * _IDLE_S)

    def _on_one(self, message: tuple[str, int, int, Node]) -> None:
        """Run one task for an idle worker in the quickest way, because a caller waits for just this task."""
        _, serial, number, node = message
        model = self._models[number]
        if not model.is_plain:
            self._on_run([(serial, number, [(0, node, None, None)])], 0)
            return
        now = time.monotonic_ns()
        self._page.words[RUNS_ON] = current_cpu()
        self._page.run(serial, now)
        ok, flags = True, 0
        answer: Any
        try:
            answer = pack(model.run(*unpack(node, self._inputs.get)), self._outputs.put)
            if answer[0] != "T":
                answer = fitted(answer, self._outputs.put)[0]
        except BaseException as error:
            self._number = number
            ok, answer = False, self._failure(serial, error)
        self._check_is_worker(number)
        if self._inputs.in_use and self._inputs.is_kept():
            model.is_plain, model.keeps_inputs, flags = False, True, KEPT
        took = time.monotonic_ns() - now
        self._sock.send(dumps(("one", serial, took, ok, answer, flags), 2), SEND)
        self._page.run(0, 0)
        if took < BRISK_NS:
            self._page.words[ANSWERED] = serial
            self._brisk = serial
        if self._inputs.in_use:
            self._inputs.finish()

    def _on_run(self, orders: list[tuple[int, int, list[Part] | tuple[Any, ...]]], answer_after_ns: int) -> None:
        self._answered_ns, self._answer_after_ns = time.monotonic_ns(), answer_after_ns
        for serial, number, parts in orders:
            self._run(serial, number, parts)
        self._page.run(self._serial, time.monotonic_ns())  # until the answer is sent: if that fails, this order closed our socket
        self._answer()
        self._page.run(0, 0)

    def _run(self, serial: int, number: int, parts: list[Part] | tuple[Any, ...]) -> None:
        """Run one order; `parts` is a tuple for a chunk."""
        now = time.monotonic_ns()
        self._page.run(serial, now)
        self._serial, self._number = serial, number
        if serial <= self._page.recalled:  # another worker has it by now
            return
        model = self._models[number]
        flags = 0
        results: Any
        if isinstance(parts, tuple):
            results, size, flags = self._chunk_results(model, parts)
        elif len(parts) == 1 and parts[0][2] is None and parts[0][3] is None and not parts[0][0] and model.is_plain:
            results, size = self._plain_result(serial, model.run, parts[0][1])  # a shortcut for the usual case
            self._check_is_worker(number)
        else:
            results, size = self._results(model, parts)
            flags = self._runner.flags
            self._check_is_worker(number)
            if flags & UNBATCHABLE:
                send(self._sock, ("unbatchable", number, self._runner.reason), wait=True)
        if self._inputs.in_use:
            flags |= self._end_inputs(model)
        end = time.monotonic_ns()
        self._add((serial, end - now, results, flags), 100 + size)
        if end - self._answered_ns > self._answer_after_ns:
            self._answer()

    def _begin_call(self) -> None:
        """Note that a call of the model begins: the time limit is for each call, and a batch that is checked, or fails, takes several."""
        self._check_is_worker(self._number)
        self._page.run(self._serial, time.monotonic_ns())

    def _check_is_worker(self, number: int) -> None:
        """End this process if it is a child that the model forked and that has returned from the model too. It would answer a second time,
        and take the next task away."""
        if os.getpid() != self._pid:
            name = self._models[number].name if number in self._models else "that was built"
            os.write(2, f"rankwise: a process that model {name!r} had forked came back from it, and was ended\n".encode())
            os._exit(0)

    def _failure(self, serial: int, error: BaseException) -> tuple[bytes, str]:
        self._check_is_worker(self._number)
        try:
            self._runner.check_gpu(error)
        except GpuUnusable as unusable:
            self._leave(serial, unusable)
        return failure(error)

    def _plain_result(self, serial: int, run: Any, node: Node) -> tuple[list[tuple[bool, Any]], int]:
        try:
            answer, size = fitted(pack(run(*unpack(node, self._inputs.get)), self._outputs.put), self._outputs.put)
        except BaseException as error:
            failed = self._failure(serial, error)
            return [(False, failed)], len(failed[0]) + len(failed[1])
        return [(True, answer)], size

    def _chunk_results(self, model: BuiltModel, payload: tuple[Any, ...]) -> tuple[tuple[Any, ...], int, int]:
        """Run the requests of a chunk until the rest is taken back. Returns the results, the bytes these take, and flags."""
        count, request = requests_of(payload, self._inputs)
        begins, in_use, flags = self._page.chunk(self._serial), self._inputs.in_use, 0
        results = ChunkResults(self._outputs)
        with model.run.several() as run:
            for i in range(count):
                if not begins(i) or results.size > MOST_BYTES:
                    break
                try:
                    results.add(run(*request(i)) if model.is_plain else self._runner.call(model, request(i)))
                except BaseException as error:
                    results.fail(self._failure(self._serial, error))
                if self._has_forked:
                    self._check_is_worker(self._number)
                if in_use:  # before the next, which may have been given the same memory
                    flags |= self._end_inputs(model)
        self._check_is_worker(self._number)  # C code may fork without Python's knowledge
        return results.packed(), results.size, flags

    def _end_inputs(self, model: BuiltModel) -> int:
        """Release the task's inputs on the lane; returns KEPT if the model still refers to one of them."""
        flags = 0
        if self._inputs.is_kept():
            model.is_plain, model.keeps_inputs, flags = False, True, KEPT
        self._inputs.finish()
        return flags

    def _results(self, model: BuiltModel, parts: list[Part]) -> tuple[list[tuple[bool, Any]], int]:
        """The results in order, and the bytes they take. A request whose deadline has passed does not run; its result is (False, None)."""
        self._runner.flags = 0
        now = time.monotonic()
        timely = [part for part in parts if part[2] is None or now < part[2]]
        found: list[tuple[bool, Any]] = []
        if timely:
            try:
                requests = [unpack(part[1], self._inputs.get) for part in timely]
                with seeded(timely[0][3]) if timely[0][3] is not None else nullcontext():  # such a request is alone in its order
                    found = self._runner.run(model, requests, [part[0] for part in timely], lambda i: self._again(timely[i][1]))
            except BaseException as error:
                found = [(False, self._failure(self._serial, error))] * len(timely)
        # All of them go into one packet: the more there are, the sooner an array goes to the lane and an exception is cut short.
        share = _RESULTS_BYTES // max(1, len(found))
        self._outputs.inline_bytes = min(INLINE_BYTES, share)
        packed = [self._packed(ok, value, share // 2) for ok, value in found]
        self._outputs.inline_bytes = INLINE_BYTES
        results = iter([(ok, answer) for ok, answer, _ in packed])
        in_order = [next(results) if part[2] is None or now < part[2] else (False, None) for part in parts]
        return in_order, sum([size for _, _, size in packed])

    def _again(self, node: Node) -> tuple[Any, ...]:
        """The inputs of a request as the caller gave them, whatever the model has done to them."""
        self._inputs.restore()
        return tuple(unpack(node, self._inputs.get))

    def _packed(self, ok: bool, value: Any, longest: int) -> tuple[bool, Any, int]:
        try:
            if ok:
                return (True, *fitted(pack(value, self._outputs.put), self._outputs.put))
            error = shortened(value, longest)
        except BaseException as raised:  # an output that cannot be pickled
            error = failure(raised, longest)
        return False, error, len(error[0]) + len(error[1])

    def _add(self, answer: tuple[Any, ...], nbytes: int) -> None:
        if self._answers_bytes + nbytes > MAX_BYTES:
            self._answer()
        self._answers.append(answer)
        self._answers_bytes += nbytes

    def _answer(self) -> None:
        if self._answers:
            send(self._sock, ("done", self._answers), wait=True)
            self._answers, self._answers_bytes = [], 0
        self._answered_ns = time.monotonic_ns()


def _set_title(title: str) -> None:
    """Set the name that `ps` and `top` show; the kernel keeps only fifteen characters."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(title[:15])
    except OSError:
        pass
    sys.argv = [title]


def note_own_signals(page: StatusPage) -> None:
    """Make Python's functions leave a note on the page before the model's code sends a signal to its own process, because the signal looks
    like one from outside. A signal that C code sends leaves no note."""
    me, group = os.getpid(), os.getpgrp()

    def noting(act: Callable[..., Any], is_me: Callable[..., bool]) -> Callable[..., Any]:
        def act_noting(*args: Any) -> Any:
            if is_me(*args):
                page.note_own_signal()
            return act(*args)

        return act_noting

    os.kill = noting(os.kill, lambda pid, number: pid in (me, 0, -1, -group) and number)
    os.killpg = noting(os.killpg, lambda pgid, number: pgid in (0, group) and number)
    os.abort = noting(os.abort, lambda: True)
    signal.raise_signal = noting(signal.raise_signal, lambda number: True)
    signal.pthread_kill = noting(signal.pthread_kill, lambda thread, number: bool(number))
