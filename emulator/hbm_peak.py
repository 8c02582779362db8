"""What fills HBM when it is fullest, where does each of it come from, and what would make it fit?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from trnprof.emulator.hbm_uses import Origin, categories, origins
from trnprof.emulator.workload import Workload
from trnprof.tracer.memory_names import (
    ACTIVATIONS,
    BUFFERS,
    COLLECTIVES,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    WORKSPACE,
)
from trnprof.tracer.units import format_bytes

_TOLD, _KEPT = 4, 10
"""So many of the largest tensors are in a note, so many in the manifest."""
_LEAST: Final = 0.01
"""Share of the peak below which none is worth a word in a note."""

_SHARD: Final = "shard {0} over more ranks (fully_shard, tensor parallelism)"
_REMEDIES: Final = {
    PARAMETERS: f"{_SHARD.format('parameters')}, or a narrower datatype",
    GRADIENTS: f"{_SHARD.format('gradients')}, or zero_grad(set_to_none=True) before the forward",
    OPTIMIZER_STATE: f"{_SHARD.format('optimizer state')}, or an optimizer with less of it",
    ACTIVATIONS: "recompute activations (torch.utils.checkpoint), a smaller batch or shorter sequences a rank",
    COLLECTIVES: "gather and reduce less at a time (fully_shard smaller modules, reshard_after_forward=True, a smaller bucket_cap_mb)",
    WORKSPACE: "a smaller batch a rank, and operators that make smaller temporaries",
    BUFFERS: "smaller buffers (caches: a shorter maximum, a narrower datatype)",
    INPUTS: "a smaller batch a rank",
}


@dataclass(frozen=True)
class Large:
    """Tensors of one shape that one line makes, in modules that differ in their numbers only.

    Attributes:
        count: how many lay in HBM at the peak.
        nbytes: of each.
        category: what they are for.
        origin: the first of them.
    """

    count: int
    nbytes: int
    category: str
    origin: Origin

    def __str__(self) -> str:
        """``2 x 16.8 MB activations float32 [64, 4096] by gelu in *.mlp (train.py:12)``."""
        origin = self.origin
        times = f"{self.count} x " if self.count > 1 else ""
        made = f" by {origin.operator}" if origin.operator else ""
        path = origin.module_path if self.count == 1 else re.sub(r"\d+", "*", origin.module_path)
        module = f" in {path}" if path else ""
        file = re.split(r"[/\\]", origin.source_file)[-1]
        line = f" ({file}:{origin.source_line})" if file else ""
        return (
            f"{times}{format_bytes(self.nbytes)} {self.category} {origin.dtype} {list(origin.shape)}"
            f"{made}{module}{line}"
        )

    def told(self) -> dict[str, Any]:
        """For the manifest."""
        origin = asdict(self.origin) | {"shape": list(self.origin.shape)}
        return {
            "count": self.count,
            "nbytes": self.nbytes,
            "category": self.category,
            **origin,
        }


@dataclass(frozen=True)
class Peak:
    """HBM when it is fullest.

    Attributes:
        nbytes: in all.
        by_category: bytes, the most first.
        largest: the most bytes first.
    """

    nbytes: int
    by_category: Mapping[str, int]
    largest: Sequence[Large]

    def told(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "peak_bytes": self.nbytes,
            "peak_by_category": dict(self.by_category),
            "peak_largest": [each.told() for each in self.largest[:_KEPT]],
        }


def peak_of(program: Workload, held: Mapping[int, int]) -> Peak:
    """What a program's storages are for that lie in HBM.

    Args:
        program: whose they are.
        held: their bytes.
    """
    category = categories(program)
    total: Counter[str] = Counter()
    for storage, nbytes in held.items():
        total[category.get(storage, ACTIVATIONS)] += nbytes
    known = origins(program, held.keys())
    alike: dict[tuple[object, ...], list[int]] = {}
    for storage, origin in known.items():
        key = (
            category.get(storage, ACTIVATIONS),
            held[storage],
            origin.dtype,
            origin.shape,
            origin.operator,
            origin.source_file,
            origin.source_line,
            re.sub(r"\d+", "#", origin.module_path),
        )
        alike.setdefault(key, []).append(storage)
    largest = [
        Large(len(each), held[each[0]], category.get(each[0], ACTIVATIONS), known[each[0]])
        for each in alike.values()
    ]
    largest.sort(key=lambda each: -each.count * each.nbytes)
    return Peak(
        sum(held.values()), {name: n for name, n in total.most_common() if n}, largest[:_KEPT]
    )


def overflow_notes(peak: Peak, capacity_bytes: int, whose: str, core: str, more: str) -> list[str]:
    """What is said where HBM does not hold what lies there at the peak: how much of what, the largest tensors, the way out.

    Args:
        peak: of the ranks.
        capacity_bytes: what it holds.
        whose: " of rank 1", or nothing.
        core: what has so much, with the system.
        more: what the machine could do about it, or nothing.
    """
    parts = ", ".join(f"{name} {format_bytes(n)}" for name, n in peak.by_category.items())
    worth = [e for e in peak.largest[:_TOLD] if e.count * e.nbytes >= _LEAST * peak.nbytes]
    largest = "; ".join(map(str, worth or peak.largest[:1]))
    most = list(peak.by_category)[:2]
    ways = "; ".join([*(_REMEDIES[name] for name in most), *([more] if more else [])])
    return [
        f"does not fit: HBM{whose} peaks at {format_bytes(peak.nbytes)}, {core} has {format_bytes(capacity_bytes)} "
        f"({format_bytes(peak.nbytes - capacity_bytes)} too much); at the peak: {parts}; timed all the same",
        f"largest at the peak{whose}: {largest}",
        f"to make it fit: {ways}",
    ]
