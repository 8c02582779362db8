"""Messages from one rank to another without torch.distributed.pipelining: python stages_by_hand.py stages|ring.

``stages``: inference in two ranks. ``ring``: each rank sends to the next one and receives from the one before.
"""

# ruff: noqa: T201

import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCHES = 64, 3


def told_shape(sends: bool, x: torch.Tensor | None, peer: int) -> tuple[int, ...]:
    """Both ends know the shape that goes from one to the other."""
    shape = torch.zeros(2, dtype=torch.int64) if x is None else torch.tensor(x.shape)
    dist.send(shape, peer) if sends else dist.recv(shape, peer)
    return tuple(shape.tolist())


def stages(rank: int) -> None:
    model = nn.Linear(WIDTH, 2 * WIDTH if rank == 0 else 3)
    weight = torch.ones(2 * WIDTH, WIDTH)
    dist.send(weight, 1) if rank == 0 else dist.recv(weight, 0)  # before the first forward
    if rank == 0:
        dist.send_object_list([{"batches": BATCHES}], 1)
    else:
        said = [None]
        dist.recv_object_list(said, 0)
        assert said == [{"batches": BATCHES}]
        model = nn.Linear(2 * WIDTH, 3)
    for batch in range(BATCHES):
        if rank == 0:
            y = model(torch.ones(4 + batch, WIDTH))
            told_shape(True, y, 1)
            dist.isend(y, 1).wait()
        else:
            x = torch.empty(told_shape(False, None, 0))
            dist.irecv(x, 0).wait()
            print(tuple(model(x).shape), flush=True)


def ring(rank: int) -> None:
    size = dist.get_world_size()
    y = nn.Linear(WIDTH, WIDTH)(torch.ones(BATCHES, WIDTH))
    x = torch.empty_like(y)
    request = dist.isend(y, (rank + 1) % size)
    dist.irecv(x, (rank - 1) % size).wait()
    request.wait()
    print(tuple(x.shape))


if __name__ == "__main__":
    dist.init_process_group()
    with torch.no_grad():
        {"stages": stages, "ring": ring}[sys.argv[1]](dist.get_rank())
