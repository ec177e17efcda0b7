import configparser
import os

import torch
import torch.distributed as dist


def connect():
    settings = configparser.ConfigParser()
    settings.read(os.environ["SETTINGS"])
    os.environ["MASTER_ADDR"] = settings["rendezvous"]["addr"]
    os.environ["MASTER_PORT"] = settings["rendezvous"]["port"]
    dist.init_process_group("gloo")  # now


connect()
x = torch.full((3,), float(dist.get_rank()))
dist.broadcast(x, src=0)
print(x)
dist.destroy_process_group()
