import time

import torch
import torch.distributed as dist
from common import small_model, start, train_step

rank = start()
model = small_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    train_step(model, optimizer)
    if rank == 0 and step == 30:
        time.sleep(6)
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
