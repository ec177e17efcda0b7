import torch
import torch.distributed as dist


class GradientBuckets:
    def __init__(self, sizes):
        self.buckets = [torch.ones(n) for n in sizes]
        self.frozen = set()

    def reduce(self):
        pending = []
        for i, bucket in enumerate(self.buckets):
            if i in self.frozen:
                continue  # fault
            pending.append(dist.all_reduce(bucket, async_op=True))
        for work in pending:
            work.wait()


def main():
    dist.init_process_group("gloo")
    grads = GradientBuckets([64, 64, 64])
    if dist.get_rank() == 1:
        grads.frozen.add(1)
    for step in range(3):
        grads.reduce()
    norms = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(norms, torch.stack([b.norm() for b in grads.buckets]).sum(0, keepdim=True))  # now
    dist.destroy_process_group()


main()
