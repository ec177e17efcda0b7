import os
import time

import torch
import torch.distributed as dist


class Downloads:
    """Fetches a file in chunks, at the pace of the other side."""

    def fetch(self, path, chunks, pause):
        with open(path, "wb") as f:
            for _ in range(chunks):
                time.sleep(pause)
                f.write(bytes(1024))


def main():
    dist.init_process_group("gloo")
    if int(os.environ["LOCAL_RANK"]) == 0:
        Downloads().fetch("weights.bin", chunks=6, pause=1.0)
    dist.barrier()
    size = torch.tensor([os.path.getsize("weights.bin")])
    dist.all_reduce(size, op=dist.ReduceOp.MAX)
    print(size.item(), flush=True)
    dist.destroy_process_group()


main()
