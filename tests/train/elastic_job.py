"""A small training that is killed and started again by the tests; it tells the folder in its first argument where it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import rankwise
from rankwise import train


def main(folder: Path, num_epochs: int) -> None:
    with rankwise.session(backend="gloo") as job:
        learn(folder, num_epochs, job.device)


def learn(folder: Path, num_epochs: int, device: torch.device | str = "cpu") -> None:
    torch.manual_seed(0)
    model = train.wrap(nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 3)), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = train.Step(model, optimizer, accumulate=2)
    inputs = torch.randn(301, 6, generator=torch.Generator().manual_seed(1))
    loader = train.Loader(TensorDataset(inputs, inputs[:, :3].sin()), global_batch_size=6, shuffle=True)
    checkpoints = train.Checkpoints(
        folder / "runs", model=model, optimizer=optimizer, step=step, loader=loader, asynchronous="--beside" in sys.argv
    )
    resumed = checkpoints.resume()
    (folder / f"ready-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}-{train.group.rank()}").write_text(f"{os.getpid()} {resumed}")
    for _ in loader.epochs(num_epochs):
        for x, y in step.over(loader):
            with step:
                loss = mse_loss(model(x), y)
            if step.backward(loss) and step.count % 3 == 0:
                checkpoints.save(step.count)
    checkpoints.wait()
    if train.group.rank() == 0:
        torch.save(train.unwrap(model).state_dict(), folder / "final.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
