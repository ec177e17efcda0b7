"""Numbers that a smaller dtype cannot hold: 1e300 is infinity in float32, 2**40 is 0 in int32."""

from __future__ import annotations

import torch

from rankwise.weights.records import CheckpointError

_STEP = 16 << 20  # elements looked at together, so that it costs time but little memory


def check_range(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise if a number of `tensor` would become infinite, or another whole number, in `dtype`. Rounding is no loss of this kind."""
    if tensor.dtype == dtype or _holds_all(tensor.dtype, dtype):
        return
    for part in torch.split(tensor.detach().reshape(-1), _STEP):
        narrow = part.to(dtype)
        lost = _lost(part, narrow)
        if bool(lost.any()):
            worst = part[lost.nonzero()[0, 0]]
            kind = str(dtype).removeprefix("torch.")
            raise CheckpointError(
                "RW734",
                f"{name} holds {worst.item():.6g}, which {kind} cannot hold",
                why=f"it is {str(tensor.dtype).removeprefix('torch.')} in the checkpoint",
                next=("build the model in that dtype, or give dtype= a wider one",),
            )


def _holds_all(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(wanted).max >= torch.finfo(dtype).max
    if dtype == torch.bool:
        return True
    return torch.iinfo(wanted).max >= torch.iinfo(dtype).max and torch.iinfo(wanted).min <= torch.iinfo(dtype).min


def _lost(part: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    if not (part.dtype.is_floating_point or part.dtype.is_complex):
        return (narrow.to(part.dtype) != part) | (_negative(narrow) != _negative(part))  # 200 in int8 is -56, which is 200 again in uint8
    try:
        return narrow.isfinite() != part.isfinite()
    except RuntimeError:  # float8 knows no isfinite
        return narrow.to(torch.float64).isfinite() != part.to(torch.float64).isfinite()


def _negative(whole: torch.Tensor) -> torch.Tensor:
    return whole < 0 if whole.dtype.is_signed else torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
