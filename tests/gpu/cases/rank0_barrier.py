import torch
import torch.distributed as dist
from common import small_model, start, train_step

rank = start()
model = small_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    train_step(model, optimizer)
    if step == 5 and rank == 0:
        dist.barrier()  # fault
