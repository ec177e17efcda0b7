import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    experts = dist.new_group([1, 2])
    for step in range(12):
        if rank:
            own = rank - 1
            counts = torch.randint(1, 5, (2, 2), generator=torch.Generator().manual_seed(step))
            send, receive = counts[own].tolist(), counts[:, own].tolist()
            if rank == 2 and step == 7:
                send = [number + 2 for number in send]  # fault
            arrived = torch.empty(sum(receive), 3)
            dist.all_to_all_single(arrived, torch.randn(sum(send), 3), receive, send, group=experts)  # now
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
