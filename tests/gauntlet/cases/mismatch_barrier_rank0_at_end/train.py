import torch
import torch.distributed as dist


def export(result):
    torch.save(result, "result.pt")
    dist.barrier()  # fault


def main():
    dist.init_process_group("gloo")
    result = torch.ones(8) * (dist.get_rank() + 1)
    dist.all_reduce(result)
    if dist.get_rank() == 0:
        export(result)
    print("bye", flush=True)


if __name__ == "__main__":
    main()
