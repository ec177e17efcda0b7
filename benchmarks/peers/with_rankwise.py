"""The same with rankwise."""

import sys

import torch
from data import digits, small_cnn
from torch.nn.functional import cross_entropy

import rankwise
from rankwise import train

ACCUMULATE = 4


def main(path: str) -> None:
    with rankwise.session() as job:
        training, testing = digits()
        torch.manual_seed(0)
        model = train.wrap(small_cnn(), device=job.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        step = train.Step(model, optimizer, accumulate=ACCUMULATE, clip_norm=1.0)
        loader = train.Loader(training, batch_size=8, shuffle=True, device=job.device)
        checkpoints = train.Checkpoints(path, model=model, optimizer=optimizer, step=step, loader=loader)
        checkpoints.resume()
        for _ in loader.epochs(5):
            for x, y in step.over(loader):
                with step:
                    loss = cross_entropy(model(x), y)
                step.backward(loss)
            checkpoints.save(step.count)
        model.eval()
        means = train.Means()
        with torch.inference_mode():
            for x, y in train.Loader(testing, batch_size=8, device=job.device):
                means.add(len(y), right=(model(x).argmax(dim=1) == y).float().mean())
        right = means.compute()["right"]
        if job.is_main:
            print(f"{right:.1%} right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
