"""Collectives called by hand, each way once: python hand.py [BACKEND]."""

# ruff: noqa: T201

import os
import sys

import torch
import torch.distributed as dist

ROWS, WIDTH = 8, 16


def called(device: str) -> None:
    """Every rank calls the same; sizes are those of rank 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    assert os.environ["WORLD_SIZE"] == str(world)
    x = torch.ones(ROWS, WIDTH, device=device)
    dist.all_reduce(x)
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    y = torch.mm(x.t(), x)
    work.wait()
    dist.broadcast(x, src=0)
    dist.reduce(x, dst=0)
    gathered = torch.empty(world * ROWS, WIDTH, device=device)
    dist.all_gather_into_tensor(gathered, x)
    shares = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(shares, x)
    dist.reduce_scatter_tensor(x, gathered)
    exchanged = torch.empty_like(gathered)
    dist.all_to_all_single(exchanged, gathered)
    # rank 0 sends two rows to each other rank, and keeps what is left
    sent = [1 + (position + rank) % 2 for position in range(world)]
    received = [1 + (position + rank) % 2 for position in range(world)]
    out = torch.empty(sum(received), WIDTH, device=device)
    dist.all_to_all_single(out, gathered[: sum(sent)].contiguous(), received, sent)
    following, before = (rank + 1) % world, (rank - 1) % world
    from_before = torch.empty_like(x)
    batch = [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, from_before, before)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(y, group=pair)
    facts = [None] * world
    dist.all_gather_object(facts, {"rank": rank})
    assert len(facts) == world
    said = [f"from {rank}"]
    dist.broadcast_object_list(said, src=0)
    dist.barrier()
    print(tuple(y.shape), said[0], len(facts))


if __name__ == "__main__":
    backend = sys.argv[1] if len(sys.argv) > 1 else "nccl"
    dist.init_process_group(backend)
    device = "cpu" if backend == "gloo" else f"cuda:{os.environ['LOCAL_RANK']}"
    model = torch.nn.Linear(WIDTH, WIDTH).to(device)
    model(torch.ones(ROWS, WIDTH, device=device)).sum().backward()
    called(device)
    dist.destroy_process_group()
