"""One rank of a small training on a GPU; writes what it came to into the folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import rankwise
from rankwise import train

NUM_STEPS = 20


def main(folder: Path, options: dict[str, Any]) -> None:
    with rankwise.session() as job:
        result = learn(folder, job.device, job.rank, **options)
        result |= {"device": job.device.type, "backend": job.backend}
        (folder / f"rank-{job.rank}.json").write_text(json.dumps(result))


def learn(
    folder: Path,
    device: torch.device,
    rank: int,
    precision: str = "fp32",
    poison: int | None = None,
    stop_at: int | None = None,
    zero: bool = False,
    sync_batchnorm: bool = False,
    compiled: bool = False,
    **saving: bool,
) -> dict[str, Any]:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(32) if sync_batchnorm else nn.LayerNorm(32)
    net = nn.Sequential(nn.Linear(6, 32), norm, nn.Tanh(), nn.Linear(32, 3))
    sample = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    model = train.wrap(net, device=device, sample=sample, sync_batchnorm=sync_batchnorm, compile=compiled)
    make = train.sharded_optimizer if zero else (lambda kind, parameters, **kw: kind(parameters, **kw))
    optimizer = make(torch.optim.AdamW, model.parameters(), lr=1e-3)
    step = train.Step(model, optimizer, accumulate=2, precision=precision, clip_norm=1.0)
    inputs = torch.randn(53, 6, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(inputs, inputs[:, :3].sin())
    loader = train.Loader(data, global_batch_size=8, shuffle=True, device=device, pin_memory=True)
    things = {"model": model, "optimizer": optimizer, "step": step, "loader": loader}
    checkpoints = train.Checkpoints(folder / "runs", **things, **saving)
    resumed = checkpoints.resume()
    number = 0
    while step.count < NUM_STEPS and step.count != stop_at:
        for x, y in step.over(loader):
            with step:
                loss = mse_loss(model(x).float(), y)
            number += 1
            closed = step.backward(loss * float("inf") if number == poison and rank == 1 else loss)
            if closed and step.count % 3 == 0 and (saving or stop_at or zero):
                checkpoints.save(step.count)
            if step.count in (NUM_STEPS, stop_at):
                break
    checkpoints.wait()
    test = train.Loader(TensorDataset(torch.arange(13.0)), batch_size=4, device=device)
    predictions, means = train.Predictions(test), train.Means()
    for (x,) in test:
        predictions.add(x)
        means.add(len(x), number=x.mean())
    return {
        "weights": torch.cat([p.detach().flatten() for p in net.parameters()]).tolist(),
        "buffers": [buffer.tolist() for buffer in train.unwrap(model).buffers()],
        "modules": [type(module).__name__ for module in model.modules()],
        "skipped": step.num_skipped,
        "resumed": resumed,
        "predictions": predictions.gather().tolist(),
        "mean": means.compute()["number"],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
