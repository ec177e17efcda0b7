"""How many numbers an all_to_all sends to each rank of its group and expects from each: torch's own record leaves that out."""

import math
import sys
from collections.abc import Sequence
from typing import Any

Splits = tuple[list[int], list[int]]  # by rank of the group: sent to it, expected from it


def of_lists(received: Sequence[Any], sent: Sequence[Any], *_: Any, **__: Any) -> Splits:
    """The splits of `all_to_all(output_tensor_list, input_tensor_list)`."""
    return [tensor.numel() for tensor in sent], [tensor.numel() for tensor in received]


def of_one(
    output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None, *_: Any, **__: Any
) -> Splits:
    """The splits of `all_to_all_single`; without split sizes each rank gets an equal part of the tensor."""
    return _parts(input, input_split_sizes, group), _parts(output, output_split_sizes, group)


def of_functional(self: Any, output_split_sizes: Any, input_split_sizes: Any, group: Any, *_: Any, **__: Any) -> Splits:
    """The splits of the functional `all_to_all_single`, which makes its own output with rows of the input's size."""
    sent = _parts(self, input_split_sizes, group)
    return sent, [rows * _width(self) for rows in output_split_sizes] if output_split_sizes else sent


def _parts(tensor: Any, rows: Any, group: Any) -> list[int]:
    if rows:
        return [int(number) * _width(tensor) for number in rows]
    size = sys.modules["torch.distributed.distributed_c10d"].get_world_size(group)
    return [tensor.numel() // size] * size


def _width(tensor: Any) -> int:
    return math.prod(tensor.shape[1:])
