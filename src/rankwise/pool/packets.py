"""What an order becomes on its way to a worker: part of one packet, however many rows it has."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.pool.arena import Arena, Slot
from rankwise.pool.chunks import Chunk
from rankwise.pool.inlet import join_nodes
from rankwise.pool.parcel import Node, Part
from rankwise.pool.schedule import Order
from rankwise.pool.tasks import Task

_ORDER_BYTES = 50_000  # of one order; with AHEAD_BYTES before it, a packet stays below MAX_BYTES
_SMALL = 256  # bytes of an array that may stay


class LaneFull(Exception):
    """The rows of an order have no room right now."""


class Carrier(Task):
    """The rows of many tasks in one piece on the lane, for as long as their order lasts, however it ends."""

    def __init__(self, first: Task, node: Node, arena: Arena) -> None:
        super().__init__(first.model, (node, 0, (), first.to_tensor), first.submitted)
        self._arena = arena

    def __del__(self) -> None:
        for slot in self.slots:
            self._arena.drop(slot)


def parts_of(order: Order, arena: Arena) -> list[Part] | tuple[Any, ...]:
    """Each task by itself, or small ones as if they were one; what is too much for the packet goes to the lane. Raises LaneFull."""
    tasks = order.tasks
    if isinstance(tasks[0], Chunk):
        return tasks[0].payload()
    size = sum([task.size for task in tasks])
    if len(tasks) > 1 and not any(task.slots or task.deadline is not None for task in tasks):
        order.is_joined = True
        node = join_nodes([task.node for task in tasks])
        if size > _ORDER_BYTES:
            order.carrier = Carrier(tasks[0], node, arena)
            _to_lane(order.carrier, arena)
            node = order.carrier.node
        return [(sum([task.rows for task in tasks]), node, None, None)]
    if size > _ORDER_BYTES:
        for task in tasks:
            _to_lane(task, arena)
    is_batched = order.model.max_batch > 1
    return [
        (task.rows if task.part is not None or (is_batched and not task.alone) else 0, task.node, task.deadline, task.seed)
        for task in tasks
    ]


def left_behind(order: Order) -> list[Task]:
    """Leaves in the order what fits a packet without the lane, and takes the others out of it."""
    order.is_joined, order.carrier = False, None
    kept, size = 1, order.tasks[0].size
    while kept < len(order.tasks) and size + order.tasks[kept].size <= _ORDER_BYTES:
        size += order.tasks[kept].size
        kept += 1
    others = order.tasks[kept:]
    del order.tasks[kept:]
    return others


def _to_lane(task: Task, arena: Arena) -> None:
    slots: list[Slot] = []
    try:
        task.node = _laned(task.node, arena, slots)
    except LaneFull:
        for slot in slots:
            arena.drop(slot)
        raise
    task.slots = (*task.slots, *slots)
    task.size = min(task.size, 100)


def _laned(node: Node, arena: Arena, slots: list[Slot]) -> Node:
    tag = node[0]
    if tag in ("T", "N", "P", "S") and type(node[-1]) is bytes and len(node[-1]) > _SMALL:
        slot = arena.write(np.frombuffer(node[-1], np.uint8))
        if slot is None:
            raise LaneFull
        slots.append(slot)
        place: Any = (slot.segment, slot.offset, len(node[-1]))
        return (*node[:-1], place)
    if tag in ("[", "(", "{"):
        return (*node[:-1], [_laned(item, arena, slots) for item in node[-1]])
    return node
