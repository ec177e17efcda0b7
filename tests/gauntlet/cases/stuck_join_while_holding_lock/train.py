import torch
import torch.distributed as dist

from recorder import Recorder


def main():
    dist.init_process_group("gloo")
    recorder = Recorder()
    for step in range(10):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        recorder.add(loss.item())
        if step == 6 and dist.get_rank() == 0:
            recorder.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
