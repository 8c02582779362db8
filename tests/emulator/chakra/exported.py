"""Workloads as capture makes them, to be exported: tensor and data parallel layers, FSDP, a ring of attention; four ranks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from tests.emulator.programs import op, ref
from tests.emulator.ranks.worlds import collective, group, layers, mesh, world

from trnprof.emulator.workload import Operation, TensorRef, Workload

RANKS = 4


def _matrix(number: int, rows: int, columns: int, role: str = "activation") -> TensorRef:
    return ref(number, rows, columns, dtype="bfloat16", role=role)


def mm(x: TensorRef, w: TensorRef, out: TensorRef) -> Operation:
    (rows, inner), columns = x.shape, w.shape[1]
    return replace(op("mm", [x, w], [out]), model_flops=2.0 * rows * inner * columns)


def tensor_and_data_parallel() -> Workload:
    """Two columns of ranks: activations are summed over pairs of ranks, gradients over others."""
    data, tensor = mesh(2, 2)
    weights = [_matrix(i, 2048, 1024, "parameter") for i in range(3)]
    x, operations, following = _matrix(100, 2048, 2048), [], 200
    for weight in weights:
        part, whole = _matrix(following, 2048, 1024), _matrix(following + 1, 2048, 2048)
        operations += [
            mm(x, weight, part),
            collective("all_reduce", whole.nbytes, [part], [whole], group=1),
        ]
        x, following = whole, following + 2
    for weight in reversed(weights):
        gradient = _matrix(following, 2048, 1024)
        operations += [
            mm(x, weight, gradient),
            collective("all_reduce", gradient.nbytes, [gradient], [gradient]),
        ]
        following += 1
    return world(operations, (group("dp", data), group("tp", tensor)), RANKS, weights)


def fully_sharded() -> Workload:
    """Two steps whose weights are gathered one layer ahead."""
    operations = layers(4, 2048, 2048, RANKS) + layers(4, 2048, 2048, RANKS, step=1, first=5000)
    flops = 2.0 * 2048**3
    operations = [replace(o, model_flops=flops) if o.name == "mm" else o for o in operations]
    return world(operations, (group("world", mesh(RANKS)[0]),), RANKS)


def ring_of_attention() -> Workload:
    """Keys go round while they are used; then an all-to-all, and a barrier."""
    x, keys, operations, following = _matrix(1, 1024, 1024), _matrix(2, 1024, 1024), [], 10
    for _ in range(RANKS):
        received, out = _matrix(following, 1024, 1024), _matrix(following + 1, 1024, 1024)
        operations += [
            collective("permute", keys.nbytes, [keys], [received]),
            mm(x, keys, out),
        ]
        keys, following = received, following + 2
    dealt = _matrix(following, 1024, 1024)
    operations += [
        collective("all_to_all", dealt.nbytes, [out], [dealt]),
        mm(dealt, keys, _matrix(following + 1, 1024, 1024)),
        collective("barrier", 0, [], []),
        mm(dealt, keys, _matrix(following + 2, 1024, 1024)),
    ]
    return world(operations, (group("world", mesh(RANKS)[0]),), RANKS)


WORKLOADS = {
    "tensor and data parallel": tensor_and_data_parallel,
    "fully sharded": fully_sharded,
    "ring of attention": ring_of_attention,
}


def digest(folder: Path) -> str:
    """Of all files of an export."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
