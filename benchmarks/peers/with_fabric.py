"""The same with Lightning Fabric."""

import os
import sys

import torch
from data import digits, small_cnn
from lightning_fabric import Fabric
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

ACCUMULATE = 4


def main(path: str) -> None:
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=int(os.environ["WORLD_SIZE"]))
    fabric.launch()
    training, testing = digits()
    torch.manual_seed(0)
    model = small_cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(training, batch_size=8, shuffle=True))
    test_loader = fabric.setup_dataloaders(DataLoader(testing, batch_size=8))
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    if os.path.exists(path):
        fabric.load(path, state)
    for epoch in range(state["epoch"], 5):
        for number, (x, y) in enumerate(loader, 1):
            is_last = number % ACCUMULATE == 0 or number == len(loader)
            with fabric.no_backward_sync(model, enabled=not is_last):
                loss = cross_entropy(model(x), y)
                fabric.backward(loss / ACCUMULATE)
            if is_last:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
        state["epoch"] = epoch + 1
        fabric.save(path, state)
    model.eval()
    num_right = torch.zeros(())
    with torch.inference_mode():
        for x, y in test_loader:
            num_right += (model(x).argmax(dim=1) == y).sum()
    num_right = fabric.all_reduce(num_right, reduce_op="sum")
    fabric.print(f"{num_right / len(testing):.1%} right")


if __name__ == "__main__":
    main(sys.argv[1])
