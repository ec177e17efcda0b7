import torch
import torch.distributed as dist


@torch.no_grad()
def evaluate(model, samples):
    model.eval()
    if len(samples) == 0:
        return float("nan")  # fault
    right = (model(samples).argmax(1) == 0).sum()
    counts = torch.tensor([right.item(), len(samples)], dtype=torch.float64)
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()
