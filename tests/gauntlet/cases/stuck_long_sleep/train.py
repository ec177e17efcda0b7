import time

import torch
import torch.distributed as dist


class Client:
    def __init__(self, rank):
        self.rank = rank

    def fetch(self, step):
        if self.rank == 2 and step == 4:
            self.back_off({"retry-after": "1500"})
        return torch.rand(10)

    def back_off(self, headers):
        time.sleep(float(headers["retry-after"]))  # fault


def main():
    dist.init_process_group("gloo")
    client = Client(dist.get_rank())
    total = torch.zeros(10)
    for step in range(8):
        part = client.fetch(step)
        dist.all_reduce(part)
        total += part
    print(total.sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
