import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(400):
    x = torch.ones(5)
    dist.all_reduce(x)
    time.sleep(0.02)
    if step == 25:
        open("running", "w").close()
dist.destroy_process_group()
