import torch.distributed as dist

dist.init_process_group("gloo")  # now
dist.barrier()
print("hello from", dist.get_rank())
dist.destroy_process_group()
