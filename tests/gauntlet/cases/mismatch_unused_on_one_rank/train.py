import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Multimodal(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Linear(6, 4)
        self.audio = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, batch):
        h = self.text(batch["text"])
        if "audio" in batch:
            h = h + self.audio(batch["audio"])  # fault
        return self.head(h)


def batches(rank):
    for step in range(8):
        batch = {"text": torch.randn(5, 6)}
        if rank == 0 or step < 3:
            batch["audio"] = torch.randn(5, 3)
        yield batch


def main():
    dist.init_process_group("gloo")
    model = DDP(Multimodal())
    opt = torch.optim.Adam(model.parameters())
    for batch in batches(dist.get_rank()):
        opt.zero_grad()
        model(batch).square().mean().backward()  # now
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
