import os
import time

import torch
import torch.distributed as dist


class Storage:
    """A slow remote disk: small writes, each of them synced."""

    def put(self, path, blob, piece=1 << 14):
        with open(path, "wb") as f:
            for i in range(0, len(blob), piece):
                f.write(blob[i : i + piece])
                f.flush()
                os.fsync(f.fileno())
                time.sleep(0.05)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        x = torch.ones(64)
        dist.all_reduce(x)
        if step == 6:
            if rank == 0:
                Storage().put("checkpoint.bin", bytes(100 << 14))
            dist.barrier()
    print("finished", flush=True)
    dist.destroy_process_group()


main()
