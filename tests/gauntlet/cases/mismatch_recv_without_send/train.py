import torch
import torch.distributed as dist


def sync_schedule(rank, epoch, schedule):
    if rank == 0:
        if epoch % 2 == 0:
            dist.send(schedule, dst=1)  # fault
    else:
        dist.recv(schedule, src=0)  # now
    return schedule


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    schedule = torch.linspace(0, 1, 16)
    for epoch in range(4):
        sync_schedule(rank, epoch, schedule)
        dist.barrier()  # now
        if rank == 0:
            print("epoch", epoch, flush=True)
    dist.destroy_process_group()


main()
