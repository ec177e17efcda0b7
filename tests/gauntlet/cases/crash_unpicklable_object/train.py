import torch
import torch.distributed as dist


class Config:
    def __init__(self, rank):
        self.lr = 0.1
        self.decay = (lambda step: 0.9**step) if rank == 0 else None


def share(config):
    box = [config]
    dist.broadcast_object_list(box, src=0)  # fault
    return box[0]


def main():
    dist.init_process_group("gloo")
    config = share(Config(dist.get_rank()))
    t = torch.tensor(config.lr)
    dist.all_reduce(t)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
