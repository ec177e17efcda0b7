"""A cache of answers for requests whose types, shapes and values are the same to the bit. The oldest answers are dropped first."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from rankwise.protocol import Array, to_raw
from rankwise.serve.infer_request import Output

_EACH = 512  # bytes that an entry takes beside its arrays, roughly
Key = bytes


class Cache:
    def __init__(self, most_bytes: int) -> None:
        self._most, self.nbytes = most_bytes, 0
        self._kept: OrderedDict[Key, tuple[int, list[Output]]] = OrderedDict()
        self.generation = 0  # changes when the model is loaded again, which makes older answers invalid

    def find(self, key: Key) -> list[Output] | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return list(found[1])

    def keep(self, key: Key, outputs: list[Output], generation: int) -> None:
        """Keep an answer, unless the model has been loaded again since it was asked."""
        size = _EACH + sum([len(to_raw(array, datatype)) for _, datatype, array in outputs])
        if generation != self.generation or key in self._kept or size > self._most:
            return
        self._kept[key] = size, [(name, datatype, _own(array)) for name, datatype, array in outputs]
        self.nbytes += size
        while self.nbytes > self._most:
            self.nbytes -= self._kept.popitem(last=False)[1][0]

    def clear(self) -> None:
        self._kept.clear()
        self.nbytes = 0
        self.generation += 1

    def __len__(self) -> int:
        return len(self._kept)


def key_of(inputs: Mapping[str, tuple[str, Array]], order: list[str]) -> Key:
    """256 bits of a cryptographic hash over names, types, shapes and bytes, each with its length: no two requests have the same."""
    found = hashlib.blake2b(digest_size=32)
    for name in order:
        datatype, array = inputs[name]
        raw = to_raw(array, datatype)
        head = repr((name, datatype, array.shape, len(raw))).encode("utf-8", "surrogatepass")
        found.update(len(head).to_bytes(8, "little") + head)
        found.update(raw)
    return found.digest()


def _own(array: Array) -> Array:
    """A copy, because a model's output may lie in memory that is used again."""
    copied = np.array(array)
    copied.setflags(write=False)
    return copied
