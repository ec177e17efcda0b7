"""The same with Accelerate."""

import os
import sys

import torch
from accelerate import Accelerator
from data import digits, small_cnn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

ACCUMULATE = 4


def main(path: str) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    training, testing = digits()
    torch.manual_seed(0)
    model = small_cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(training, batch_size=8, shuffle=True)
    test_loader = DataLoader(testing, batch_size=8)
    model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
    first_epoch = 0
    if os.path.exists(path):
        accelerator.load_state(path)
        with open(os.path.join(path, "epoch")) as file:
            first_epoch = int(file.read()) + 1
    for epoch in range(first_epoch, 5):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(path)
        if accelerator.is_main_process:
            with open(os.path.join(path, "epoch"), "w") as file:
                file.write(str(epoch))
        accelerator.wait_for_everyone()
    model.eval()
    right = []
    with torch.inference_mode():
        for x, y in test_loader:
            predicted, labels = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
            right.append(predicted == labels)
    accelerator.print(f"{torch.cat(right).float().mean():.1%} right")
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
