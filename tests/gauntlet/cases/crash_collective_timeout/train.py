import datetime
import time

import torch
import torch.distributed as dist


class RateLimit:
    def __init__(self, per_minute):
        self.pause = 60 / per_minute

    def wait(self):
        time.sleep(self.pause)  # fault


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    limiter = RateLimit(per_minute=1 if dist.get_rank() == 1 else 6000)
    for step in range(3):
        x = torch.ones(1)
        dist.all_reduce(x)
        limiter.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
