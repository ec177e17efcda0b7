import atexit
import queue
import threading

import torch
import torch.distributed as dist

records = queue.Queue()


def write(path):
    with open(path, "w") as file:
        while True:
            name, value = records.get()
            file.write(f"{name} {value:.3f}\n")
            records.task_done()


def flush():
    records.join()  # fault


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        threading.Thread(target=write, args=("/dev/null",), daemon=True).start()
        atexit.register(flush)
    for step in range(3):
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            records.put(("loss", x.item()) if step < 2 else ("loss", None))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
