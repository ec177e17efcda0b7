import asyncio
import socket
import threading

import torch
import torch.distributed as dist


def silent_server(sock):
    kept = []
    while True:
        kept.append(sock.accept())


async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"config?\n")
    await writer.drain()
    return await reader.readline()  # fault


def main():
    dist.init_process_group("gloo")
    value = torch.zeros(1)
    if dist.get_rank() == 0:
        sock = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=silent_server, args=(sock,), daemon=True).start()
        value += len(asyncio.run(ask(sock.getsockname()[1])))  # now
    dist.broadcast(value, 0)
    dist.destroy_process_group()


main()
