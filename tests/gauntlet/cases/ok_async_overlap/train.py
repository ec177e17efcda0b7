import threading
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    side = dist.new_group()
    heard = []

    def gossip():
        for i in range(20):
            t = torch.tensor([float(i)])
            dist.all_reduce(t, group=side)
            heard.append(t.item())
            time.sleep(0.02)

    thread = threading.Thread(target=gossip)
    thread.start()
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(30)]
    time.sleep(1.0)
    for work in works:
        work.wait()
    thread.join()
    assert heard[-1] == 38.0
    dist.destroy_process_group()


main()
