import resource

import torch
import torch.distributed as dist


class Memo:
    def __init__(self):
        self.handles = []

    def note(self, step):
        self.handles.append(open("notes.txt", "a"))  # fault
        self.handles[-1].write(f"{step}\n")


def main():
    dist.init_process_group("gloo")
    memo = Memo()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, hard))
    for step in range(400):
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            memo.note(step)
    dist.destroy_process_group()


main()
