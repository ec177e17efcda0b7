import multiprocessing as mp

import torch
import torch.distributed as dist

from tokeniser import serve


class Tokens:
    def __init__(self, table):
        ctx = mp.get_context("fork")
        self.out = ctx.Queue()
        self.process = ctx.Process(target=serve, args=(table, self.out), daemon=True)
        self.process.start()

    def next(self):
        return torch.tensor(self.out.get())  # fault


def main():
    dist.init_process_group("gloo")
    table = {c: i for i, c in enumerate("abcdefgh" if dist.get_rank() == 0 else "abc")}
    tokens = Tokens(table)
    for step in range(8):
        ids = tokens.next()  # now
        dist.all_reduce(ids)
    print(ids.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
