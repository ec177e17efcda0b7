import torch
import torch.distributed as dist
from common import small_model, start, train_step

rank = start()
model = small_model(norm=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.no_grad()
def validate(model):
    model.eval()
    total = 0.0
    for _ in range(20):
        total += model(torch.randn(8, 16, device="cuda")).sum().item()  # fault
    model.train()
    return total


for _epoch in range(3):
    for _ in range(10):
        train_step(model, optimizer)
    if rank == 0:
        validate(model)
    dist.barrier()
    torch.cuda.synchronize()
