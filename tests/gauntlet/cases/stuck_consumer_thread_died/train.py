import queue
import threading

import torch
import torch.distributed as dist


class LogWriter(threading.Thread):
    def __init__(self, path):
        super().__init__(name="log-writer", daemon=True)
        self.path, self.todo = path, queue.Queue(maxsize=3)
        self.start()

    def run(self):
        with open(self.path, "w") as f:
            while True:
                record = self.todo.get()
                f.write(f"{record['step']} {record['loss']}\n")  # fault

    def log(self, **record):
        self.todo.put(record)  # now


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    writer = LogWriter("train.log") if rank == 0 else None
    for step in range(30):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if writer and step < 5:
            writer.log(step=step, loss=loss.item())
        elif writer:
            writer.log(step=step, lr=0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
