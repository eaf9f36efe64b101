"""One end of a torch.distributed pair over gloo: `gloo.py RANK ADDRESS PORT BYTES`.

Rank 0 sends and ends with its input; rank 1 answers every line of its input (a number of bytes, as JSON) with the seconds
of one fetch: a request of 8 bytes, answered by so many bytes into a tensor that is warm.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

# Gloo says on the standard output that it is connected, where only answers belong.
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

rank, address, port, size = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=2)
data = torch.ones(size // 4)
request = torch.zeros(1, dtype=torch.int64)


def say(answer):
    print(json.dumps(answer), file=answers, flush=True)


say(torch.__version__)
if rank == 0:
    while True:
        dist.recv(request, 1)
        if request.item() == 0:
            break
        dist.send(data[: request.item() // 4], 1)
else:
    for line in sys.stdin:
        request[0] = json.loads(line)
        part = data[: request.item() // 4]
        began = time.perf_counter()
        dist.send(request, 0)
        dist.recv(part, 0)
        say(time.perf_counter() - began)
    request[0] = 0
    dist.send(request, 0)
os._exit(0)
