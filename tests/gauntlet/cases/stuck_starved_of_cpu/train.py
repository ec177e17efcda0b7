import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

BURN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


def crowd_out():
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    burners = [subprocess.Popen([sys.executable, "-S", "-c", BURN]) for _ in range(3)]
    time.sleep(0.5)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # fault
    return burners


def work(n):
    total = 0
    for i in range(n):
        total += i * i % 7  # now
    return total


dist.init_process_group("gloo")
burners = crowd_out() if dist.get_rank() == 1 else []
x = torch.tensor([float(work(3_000_000))])
dist.all_reduce(x)
for b in burners:
    b.kill()
dist.destroy_process_group()
