import os
import socket

import torch
import torch.distributed as dist


class Features:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.file = self.sock.makefile("rb")

    def lookup(self, key):
        self.sock.sendall(b"%d\n" % key)
        return int(self.file.readline())  # fault


dist.init_process_group("gloo")
features = Features(int(os.environ["FEATURES"]))
for step in range(10):
    x = torch.tensor([features.lookup(step + 95 * dist.get_rank())])  # now
    dist.all_reduce(x)
print(x)
dist.destroy_process_group()
