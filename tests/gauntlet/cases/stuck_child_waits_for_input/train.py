import subprocess
import sys

import torch
import torch.distributed as dist

CONVERTER = "import sys; rows = sys.stdin.read().split(); print(len(rows))"


def convert(rows):
    p = subprocess.Popen([sys.executable, "-c", CONVERTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    p.stdin.write("\n".join(rows))
    p.stdin.flush()
    p.wait()  # fault
    return int(p.stdout.read())


def main():
    dist.init_process_group("gloo")
    n = torch.zeros(1)
    if dist.get_rank() == 0:
        n += convert(["a", "b", "c"])
    dist.broadcast(n, src=0)
    print(n.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
