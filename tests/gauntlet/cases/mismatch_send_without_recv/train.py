import torch
import torch.distributed as dist

MICRO = 4


class Stage:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.layer = torch.nn.Linear(256, 256)

    def produce(self):
        for i in range(MICRO + 1):
            dist.send(self.layer(torch.randn(512, 256)).detach(), dst=1)  # fault

    def relay(self):
        buf = torch.empty(512, 256)
        for i in range(MICRO):
            dist.recv(buf, src=0)
            dist.send(self.layer(buf).detach(), dst=2)

    def consume(self):
        buf = torch.empty(512, 256)
        for i in range(MICRO):
            dist.recv(buf, src=1)
        print("loss", buf.mean().item(), flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    [stage.produce, stage.relay, stage.consume][stage.rank]()
    dist.barrier()  # now
    dist.destroy_process_group()
