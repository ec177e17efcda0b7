import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(60):
    time.sleep(0.01)
    x = torch.ones(4)
    dist.all_reduce(x)
    if step == 20:
        open("warm", "w").close()
dist.destroy_process_group()
