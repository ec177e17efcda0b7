import os
import queue
import threading

import torch
import torch.distributed as dist


class Prefetch:
    def __init__(self, batches):
        self.batches, self.queue = batches, queue.Queue(maxsize=4)
        threading.Thread(target=self._fill, name="prefetch", daemon=True).start()

    def _fill(self):
        for batch in self.batches:
            self.queue.put(batch)

    def __iter__(self):
        return self

    def __next__(self):
        return self.queue.get()  # fault


dist.init_process_group("gloo")
count = 6 if os.environ["RANK"] == "0" else 8
stream = Prefetch([torch.ones(3) for _ in range(count)])
for step in range(8):
    batch = next(stream)  # now
    dist.all_reduce(batch)
print("ok")
dist.destroy_process_group()
